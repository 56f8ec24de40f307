"""Fixtures for all tests: the real servers."""

pytest_plugins = ["llama_server", "sglang_server"]
