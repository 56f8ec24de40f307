"""The child process: llama.cpp's own HTTP server, on a port of its own, for as long as its parent lives.

Run as a script; it imports nothing of this project, so that it starts fast. One JSON line on stdin says how to run;
one JSON line on stdout says where it listens, or what went wrong. Whatever else is printed goes to stderr.

Invariant: it ends when stdin does, and then leaves no files. A parent that was killed closes stdin, too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from typing import Any

PARENT_CHECK_S = 1.0
LOG_S = 1.0


def main() -> None:
    """Serve until the parent is gone."""
    parent = os.getppid()
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.buffer.readline())
    gone = threading.Event()
    threading.Thread(target=_wait_for_eof, args=(gone,), daemon=True).start()
    try:
        server = _start(settings)
    except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
        _wait_for_log()
        _tell(report, {"error": str(error) or type(error).__name__})
        os._exit(1)
    _tell(report, {"url": server.listening_address})
    # A process forked from the parent may hold our stdin open after the parent's death: look at our own parent, too.
    while not gone.wait(PARENT_CHECK_S) and os.getppid() == parent:
        pass
    shutil.rmtree(settings["folder"], ignore_errors=True)
    os._exit(0)  # the server's own destructor waits for its loop for ever


def _wait_for_eof(gone: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    gone.set()


def _wait_for_log() -> None:
    """Wait a moment for the reason of a failure: llama.cpp logs in a thread of its own, which ends with us."""
    deadline = time.monotonic() + LOG_S
    while not os.fstat(2).st_size and time.monotonic() < deadline:
        time.sleep(LOG_S / 100)


def _tell(report: Any, message: dict[str, str]) -> None:
    report.write(json.dumps(message) + "\n")
    report.flush()


def _start(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["name"]}
    params.port = 0
    params.api_keys = [settings["key"]] if settings["key"] else []
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    # Each slot with a cache of its own: one that runs full ends its own call only (a shared one fails all calls in
    # flight), and no call attends over the cells of the others (a fifth less CPU with eight branches of 600 tokens).
    params.kv_unified = False
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    params.n_gpu_layers = 0
    params.slot_save_path = settings["folder"] + os.sep
    params.endpoint_metrics = True
    params.fit_params = False
    params.ui = False
    params.verbosity = 1  # errors: warnings come with every request
    # Small batches: a long prompt holds up the others' next token, and its own cancellation, for one batch.
    params.n_batch = params.n_ubatch = max(256, settings["slots"])
    # A stream holds a thread of the HTTP server until it ends: leave some for tokenizing.
    params.n_threads_http = settings["slots"] + 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
