"""The embedded engine's process: how it is asked for, how it starts, and that it always ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import (
    BackendUnavailable,
    ConfigurationError,
    InvalidParameter,
    MissingExtra,
)
from anabranch.serving.backends.local import engine, from_url, models, settings
from anabranch.serving.backends.local.backend import LocalBackend
from llama_server import HELLO, ask, stream

STORY = Branch.of("Tell a very long story.")


def is_gone(pid: int, *, within_s: float = 20.0) -> bool:
    """Whether a process ends (a zombie of somebody else's counts as ended)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


async def kill_in_the_middle(backend: LocalBackend) -> None:
    async for _ in stream(backend, STORY, max_tokens=900):
        assert backend.engine is not None
        os.kill(backend.engine.pid, signal.SIGKILL)


# Asking for it


def test_bad_urls(tmp_path: Path) -> None:
    """A missing file, an unknown option and a bad number are named before anything is started."""
    with pytest.raises(InvalidParameter, match=r"no such model file: .*nothing\.gguf"):
        from_url(f"local:{tmp_path}/nothing.gguf")
    with pytest.raises(InvalidParameter, match="no such option; `local:` has slots, context, threads"):
        from_url("local:?slot=4")
    with pytest.raises(InvalidParameter, match="from 1 to 256, got 'many'"):
        from_url("local:?slots=many")


def test_missing_engine_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without xllamacpp the error says what to install."""
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"anabranch\[local\]"):
        from_url("local:")


def test_threads_follow_url_then_environment() -> None:
    """Threads in the URL go before ANABRANCH_LOCAL_THREADS, which goes before one for each core, four at most."""
    environ = {"ANABRANCH_LOCAL_THREADS": "3"}
    assert settings.parse("local:?threads=2", environ).threads == 2
    assert settings.parse("local:", environ).threads == 3
    assert 1 <= settings.parse("local:", {}).threads <= 4


def test_name_of_a_model_is_that_of_its_file() -> None:
    """A model is called what its file is, without the name of the quantisation."""
    assert engine.model_name(Path("SmolLM2-135M-Instruct.Q4_1.gguf")) == "SmolLM2-135M-Instruct"
    assert engine.model_name(Path("qwen2.5-coder-0.5b-q4.gguf")) == "qwen2.5-coder-0.5b-q4"


# Life and death of the child


@pytest.mark.llama
async def test_file_that_is_no_model_is_explained(tmp_path: Path) -> None:
    """An engine that does not start says why, and is not tried again by itself."""
    (tmp_path / "bad.gguf").write_text("garbage")
    backend = from_url(f"local:{tmp_path}/bad.gguf")
    with pytest.raises(BackendUnavailable, match="invalid magic") as caught:
        await backend.probe()
    assert not caught.value.retryable
    assert backend.engine is None
    await backend.aclose()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "cannot run on this processor"),
        ("import sys; sys.exit('first line\\n\\nno libgomp.so.1')", "status 1 at its start: no libgomp.so.1"),
        ("", "the embedded engine stopped at its start"),
    ],
    ids=["illegal instruction", "import error", "silence"],
)
async def test_child_that_does_not_start_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    """A child that dies at its start is an error with the reason: the processor, or its last words."""
    server = tmp_path / "server.py"
    server.write_text(script)
    monkeypatch.setattr(engine, "_SERVER", server)
    with pytest.raises(BackendUnavailable, match=message) as caught:
        await engine.Engine.start(settings.Settings(), tmp_path / "model.gguf")
    assert not caught.value.retryable


@pytest.mark.llama
async def test_child_is_gone_after_aclose(local_backend_url: str) -> None:
    """Closing ends the child and removes its files; closing again, and never starting, are fine."""
    backend = from_url(local_backend_url)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(ask(backend, HELLO, max_tokens=1))
    child = backend.engine
    assert child is not None
    assert child.folder.is_dir()
    await backend.aclose()
    await backend.aclose()
    assert is_gone(child.pid, within_s=0.1)
    assert not child.folder.exists()
    with pytest.raises(BackendUnavailable, match="closed"):
        await ask(backend, HELLO)
    await from_url(local_backend_url).aclose()


@pytest.mark.llama
async def test_closing_ends_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download goes on when one of those who wait for it gives up; when the backend is closed it ends."""
    begun = tmp_path / "begun"
    slow = f"import time; open({str(begun)!r}, 'a').write('x'); time.sleep(600)"
    monkeypatch.setattr(models, "_pip", lambda: (sys.executable, "-c", slow))
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    backend = from_url("local:")
    first = asyncio.create_task(backend.probe())
    while not begun.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    second = asyncio.create_task(backend.probe())
    first.cancel()
    await asyncio.wait([first])
    async with asyncio.timeout(30):
        await asyncio.sleep(0.5)
        assert not second.done()
        await backend.aclose()
    with pytest.raises((ConfigurationError, BackendUnavailable)):
        await second
    assert begun.read_text() == "x"


@pytest.mark.llama
async def test_child_killed_in_the_middle(local_backend_url: str) -> None:
    """Calls in flight fail when the child is killed, and the next call starts another one."""
    backend = from_url(local_backend_url)
    try:
        with pytest.raises(BackendUnavailable, match="killed by SIGKILL"):
            await kill_in_the_middle(backend)
        assert (await ask(backend, HELLO, max_tokens=2)).ids
    finally:
        await backend.aclose()


@pytest.mark.llama
async def test_child_that_keeps_dying_is_given_up(local_backend_url: str) -> None:
    """After three deaths without an answer in between no further child is started."""
    backend = from_url(local_backend_url)
    for _ in range(3):
        await backend.probe()
        assert backend.engine is not None
        os.kill(backend.engine.pid, signal.SIGKILL)
        while backend.engine.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    with pytest.raises(BackendUnavailable, match="died 3 times") as caught:
        await backend.probe()
    assert not caught.value.retryable
    await backend.aclose()


_PARENT = """
import asyncio, sys
from anabranch.serving.backends.local import from_url

async def main():
    backend = from_url(sys.argv[1])
    await backend.probe()
    print(backend.engine.pid, backend.engine.folder, flush=True)
    await asyncio.sleep(float(sys.argv[2]))

asyncio.run(main())
"""


@pytest.mark.llama
def test_child_ends_with_a_killed_parent(local_backend_url: str) -> None:
    """A parent that is killed takes its child, and the child's files, with it."""
    command = [sys.executable, "-c", _PARENT, local_backend_url, "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, _, folder = parent.stdout.readline().strip().partition(" ")
        parent.kill()
    assert is_gone(int(pid))
    assert not Path(folder).exists()


@pytest.mark.llama
def test_child_ends_with_a_parent_that_forgot_it(local_backend_url: str) -> None:
    """A backend that is never closed ends with its interpreter, without a warning."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", _PARENT, local_backend_url, "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    pid, _, folder = done.stdout.strip().partition(" ")
    assert is_gone(int(pid))
    assert not Path(folder).exists()
    assert "Warning" not in done.stderr
