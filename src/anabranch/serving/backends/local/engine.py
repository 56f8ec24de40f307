"""Engine: the child process that runs llama.cpp, seen from its parent. It starts it, knows its address, ends it.

Invariant: the child ends with this object: by `stop`, when it is garbage, when the interpreter exits, and (by the
end of its stdin) when the interpreter is killed. No zombie and no file is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from anabranch.orchestrator.errors import BackendUnavailable
from anabranch.serving.backends.local.settings import Settings

START_DEADLINE_S = 300.0
GRACE_S = 5.0
DYING_S = 1.0
_SERVER = Path(__file__).with_name("server.py")
_LOG = "engine.log"
_QUANTISATION = re.compile(r"\.(I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)


class Engine:
    """A running llama.cpp server. Made by `start`.

    Attributes:
        url: where it listens: `http://127.0.0.1:PORT`.
        key: what it wants as bearer token: nobody else on this machine is to use it. Empty: open to all.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, key: str) -> None:
        self.url, self.key = "", key
        self._process, self._folder = process, folder
        self._end = weakref.finalize(self, _end, process, folder, os.getpid())

    @classmethod
    async def start(cls, settings: Settings, model: Path, *, open_to_all: bool = False) -> Engine:
        """Start it and wait until the model is loaded.

        Raises:
            BackendUnavailable: it did not start; the message has the reason that it logged.
        """
        key = "" if open_to_all else secrets.token_hex(16)
        folder = Path(tempfile.mkdtemp(prefix="anabranch-local-"))
        engine = cls(_spawn(folder), folder, key)
        orders = {
            "model": str(model),
            "name": model_name(model),
            "key": key,
            "folder": str(folder),
            "slots": settings.slots,
            "context": settings.context,
            "threads": settings.threads,
        }
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                engine.url = await asyncio.to_thread(engine._introduce, orders)
        except TimeoutError as error:
            raise BackendUnavailable(
                f"the embedded engine did not start within {START_DEADLINE_S:.0f} s{engine._reason()}"
            ) from error
        finally:
            if not engine.url:
                engine._process.kill()  # while it loads its model it would not notice anything gentler
                await engine.stop()
        return engine

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._end.alive and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Where it saves the state of its slots; gone when it ends."""
        return self._folder

    async def obituary(self) -> str:
        """One line on what became of it, with the reason that it logged."""
        with suppress(subprocess.TimeoutExpired):  # its connections break a little before it is gone
            await asyncio.to_thread(self._process.wait, DYING_S)
        if self.alive:
            return f"the embedded engine does not answer{self._reason()}"
        return f"the embedded engine {_how_it_ended(self._process.returncode)}{self._reason()}"

    async def stop(self) -> None:
        """End it: first by closing its stdin, then by force. Idempotent."""
        await asyncio.to_thread(self._end)

    def _introduce(self, orders: dict[str, Any]) -> str:
        """Tell the child how to run, and wait for its address."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(orders).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._process.stdout.readline() or b"{}")
        except (OSError, ValueError):
            reply = {}
        if url := reply.get("url"):
            return str(url)
        if "error" in reply:
            raise BackendUnavailable(
                f"the embedded engine did not start{self._reason() or ': ' + reply['error']}", retryable=False
            )
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        how = _how_it_ended(self._process.returncode)
        raise BackendUnavailable(f"the embedded engine {how} at its start{self._reason()}", retryable=False)

    def _reason(self) -> str:
        """The first error in its log, or else the last line, ready to stand after a statement."""
        try:
            lines = [line.strip() for line in (self._folder / _LOG).read_text(errors="replace").splitlines()]
        except OSError:
            return ""
        errors = [line.partition(" E ")[2] for line in lines if " E " in line]
        said = errors[0] if errors else next((line for line in reversed(lines) if line), "")
        return f": {' '.join(said.split())[:300]}" if said else ""


def model_name(model: Path) -> str:
    """What a model file is called: its stem without the name of the quantisation."""
    return _QUANTISATION.sub("", model.stem)


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    # OpenMP's threads spin while they wait, which starves whatever else wants the cores.
    environ = {"OMP_WAIT_POLICY": "passive"} | dict(os.environ)
    with (folder / _LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environ,
            start_new_session=True,  # a Ctrl-C is ours to handle: it is not to kill the engine under our calls
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of us exits: the engine is not its to end
        return
    _close(process.stdin)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _close(process.stdout)
    shutil.rmtree(folder, ignore_errors=True)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except OSError:  # what was still to be written found no reader
            pass


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return "stopped" if not returncode else f"stopped with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if name == "SIGILL":
        return "cannot run on this processor (it needs AVX2)"
    return f"was killed by {name}"
