"""A server that we started: made ready, watched, and stopped with all its children.

It has a process group of its own, so that stopping it stops its children. It dies with the process that started
it, however that one ends (on Linux).

Invariant: leaving the context leaves no process behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from anabranch.orchestrator.errors import BackendTimeout, ConfigurationError

READY_S = 900.0
"""Longest wait for a server to become ready, in seconds: large models take minutes to load."""
STOP_S = 15.0
"""Longest wait for a server to stop by itself, in seconds."""
GONE_S = 2.0
"""Longest wait for killed children to be gone, in seconds."""

_POLL_S = 0.25
_TAIL_LINES = 15
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform.startswith("linux"):
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ServerProcess:
    """A model server as a child process; a context manager, for `with` and for `async with`.

    Args:
        command: what to run.
        url: where it will be, `http://HOST:PORT`; ready when `/health` there answers 200.
        log: file for its output; a temporary one where None, which stays only where the server fails.
        environment: variables besides those of this process.
        ready_s: longest wait for it, in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        url: str,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready_s: float = READY_S,
    ) -> None:
        self.command, self.url, self._ready_s = list(command), url.rstrip("/"), ready_s
        self._environment = {**os.environ, **(environment or {})}
        self._log, self._temporary = log, log is None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id, which is the id of its process group as well."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> Path | None:
        """Where its output goes."""
        return self._log

    def __enter__(self) -> Self:
        self._start()
        try:
            deadline = time.monotonic() + self._ready_s
            while True:
                if self._ready(deadline):
                    return self
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # Started in this thread, as the kernel ends a child with the thread that made it.
        self._start()
        try:
            deadline = time.monotonic() + self._ready_s
            while True:
                if await asyncio.to_thread(self._ready, deadline):
                    return self
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self.stop))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    def run(self) -> int:
        """Run it in the foreground, its output on this terminal, until it ends or Ctrl-C; its exit code."""
        self._spawn(None)
        assert self._process is not None
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            self.stop()

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        assert self._process is not None, "not started"
        return self._process.poll()

    def stop(self) -> None:
        """Stop it and all its children: politely, then for good. Idempotent."""
        process = self._process
        if process is None:
            return
        died = process.poll() is not None
        self._signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            process.wait()
            self._wait_for_children()
            self._process = None
            if not died:
                self._forget_log()

    def _start(self) -> None:
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="anabranch-server-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
        with self._log.open("ab") as out:
            self._spawn(out)

    def _spawn(self, out: IO[bytes] | None) -> None:
        wrapped = [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *self.command]
        self._process = subprocess.Popen(
            wrapped,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=self._environment,
            start_new_session=True,
        )

    def _ready(self, deadline: float) -> bool:
        """Whether it answers. Raises when it has ended, or the time is up."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise ConfigurationError(f"the server ended with code {code} before it was ready\n{self._tail()}")
        if _healthy(self.url):
            return True
        if time.monotonic() > deadline:
            raise BackendTimeout(f"the server was not ready after {self._ready_s:.0f} s\n{self._tail()}")
        return False

    def _tail(self) -> str:
        """The end of its output."""
        assert self._log is not None
        self._temporary = False
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([*lines[-_TAIL_LINES:], f"(all of it: {self._log})"])

    def _forget_log(self) -> None:
        """Remove a temporary log that nobody was pointed to."""
        if self._temporary and self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def _wait_for_children(self) -> None:
        """Wait until the kernel has done away with them: large ones take a moment to die."""
        deadline = time.monotonic() + GONE_S
        while self._signal(0) and time.monotonic() < deadline:
            time.sleep(_POLL_S / 5)

    def _signal(self, number: int) -> bool:
        """Send it a signal, its children too; whether there was anyone to take it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + "/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
