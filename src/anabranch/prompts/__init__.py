"""Prompt texts, as files: one TOML file for each, `load("skeleton/outline")` to get one.

A user overrides a text by a file of the same name in a folder of their own (an argument, or ANABRANCH_PROMPTS). No
prompt text stands in Python code. This package knows no strategy and no server.
"""

from anabranch.prompts.template import Prompt, load, names

__all__ = ["Prompt", "load", "names"]
