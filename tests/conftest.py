"""Fixtures for all tests: the real servers; and signals as a terminal would have them."""

from __future__ import annotations

import signal

pytest_plugins = ["llama_server", "sglang_server"]

# A shell that runs the tests in its background hands down SIGINT as ignored, to the programs under test, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
