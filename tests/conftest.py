"""Fixtures for all tests."""

pytest_plugins = ["llama_server"]
