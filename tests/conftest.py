"""For all tests: the real servers; the same examples each time; and signals as a terminal would have them."""

from __future__ import annotations

import signal

from hypothesis import settings

pytest_plugins = ["llama_server", "sglang_server"]

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# A shell that runs the tests in its background hands down SIGINT as ignored, to the programs under test, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
