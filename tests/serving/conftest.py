"""Fixtures of the tests in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sglang_server import sglang_url

__all__ = ["sglang_url"]
