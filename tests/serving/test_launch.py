"""Starting SGLang: command lines, the environment for CPUs, and processes that leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.orchestrator.errors import (
    BackendTimeout,
    ConfigurationError,
    InvalidParameter,
    MissingExtra,
    UnknownName,
)
from anabranch.serving import launch
from anabranch.serving.launch import environment
from sglang_server import require_environment


def value_of(flag: str, command: Sequence[str]) -> str:
    """What stands behind a flag."""
    return command[command.index(flag) + 1]


def test_the_gpu_profile_reports_and_shares() -> None:
    """The command line for a GPU turns on the figures, and leaves prefix caching on."""
    command = launch.command("gpu", model="org/model", port=31000, tp=2, extra_flags=["--log-level", "warning"])
    assert command[:5] == [sys.executable, "-m", "sglang.launch_server", "--model-path", "org/model"]
    assert {"--enable-cache-report", "--enable-metrics"} <= set(command)
    assert "--disable-radix-cache" not in command
    assert value_of("--port", command) == "31000"
    assert value_of("--host", command) == "127.0.0.1"
    assert value_of("--tp-size", command) == "2"
    assert command[-2:] == ["--log-level", "warning"]


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE", "eagle3"])
def test_a_draft_model_drafts(algorithm: str) -> None:
    """EAGLE3 and STANDALONE take a draft model and leave room for it; each flag is given once."""
    command = launch.command("gpu", model="m", port=1, speculative=algorithm, draft_model="d")
    assert value_of("--speculative-algorithm", command) == algorithm.upper()
    assert value_of("--speculative-draft-model-path", command) == "d"
    assert value_of("--speculative-num-steps", command) == "3"
    assert value_of("--speculative-eagle-topk", command) == "1"
    assert value_of("--speculative-num-draft-tokens", command) == "4"
    assert value_of("--mem-fraction-static", command) == "0.75"
    flags = [word for word in command if word.startswith("--")]
    assert len(flags) == len(set(flags))


def test_ngram_needs_no_draft_model() -> None:
    """NGRAM drafts from what was written before."""
    command = launch.command("gpu", model="m", port=1, speculative="NGRAM")
    assert value_of("--speculative-algorithm", command) == "NGRAM"
    assert value_of("--speculative-num-draft-tokens", command) == "12"
    assert "--speculative-draft-model-path" not in command


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"profile": "tpu"}, UnknownName, "cpu"),
        ({"profile": "gpu", "model": None}, InvalidParameter, "model"),
        ({"speculative": "MAGIC"}, UnknownName, "EAGLE3"),
        ({"speculative": "EAGLE3"}, InvalidParameter, "needs a draft model"),
        ({"speculative": "NGRAM", "draft_model": "d"}, InvalidParameter, "takes no draft model"),
        ({"draft_model": "d"}, InvalidParameter, "STANDALONE"),
        ({"profile": "cpu", "speculative": "NGRAM"}, InvalidParameter, "cpu"),
    ],
)
def test_what_does_not_go_together_is_refused(
    fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """A command line that SGLang would refuse after minutes of loading is refused at once."""
    with pytest.raises(kind, match=message):
        launch.command(**{"profile": "gpu", "model": "m", "port": 1, **fields})


def test_what_is_not_built_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its environment the CPU profile names the command that builds it."""
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    assert launch.cpu_environment() is None
    with pytest.raises(ConfigurationError, match="--profile cpu --build"):
        launch.command("cpu", port=1)


def test_an_environment_of_another_recipe_does_not_count(tmp_path: Path) -> None:
    """An environment counts as built only where the recipe of this version made it, to its end."""
    root = tmp_path / f"sglang-cpu-{environment.SGLANG_VERSION}"
    root.mkdir()
    marker = root / "complete.json"
    for text, built in (("", False), ("{}", False), (json.dumps({"recipe": environment._recipe()}), True)):
        marker.write_text(text)
        found = launch.cpu_environment(tmp_path)
        assert (found is not None) is built
    marker.write_text(json.dumps({"recipe": "older"}))
    assert launch.cpu_environment(tmp_path) is None


def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    """Building returns at once where the environment is there."""
    root = tmp_path / f"sglang-cpu-{environment.SGLANG_VERSION}"
    root.mkdir()
    (root / "complete.json").write_text(json.dumps({"recipe": environment._recipe()}))
    steps: list[str] = []
    assert launch.build_cpu_environment(tmp_path, progress=steps.append).root == root
    assert steps == []


def test_a_build_that_fails_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails ends the build with the last line of its output and the log's place, and nothing counts."""
    monkeypatch.setattr(environment, "_NEEDED_BYTES", 0)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no room at the inn\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ConfigurationError, match=r"no room at the inn.*build\.log"):
        launch.build_cpu_environment(tmp_path, progress=lambda _: None)
    assert launch.cpu_environment(tmp_path) is None


def test_a_full_disk_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room the build does not begin."""
    monkeypatch.setattr(environment, "_NEEDED_BYTES", 2**60)
    with pytest.raises(ConfigurationError, match="ANABRANCH_CACHE"):
        launch.build_cpu_environment(tmp_path, progress=lambda _: None)


def test_sglang_that_is_not_installed_is_said() -> None:
    """Flags cannot be checked where there is no SGLang: the error names the extra."""
    have = (
        subprocess.run([sys.executable, "-c", "import sglang"], capture_output=True, check=False).returncode
        == 0
    )
    if have:
        pytest.skip("SGLang is installed here")
    with pytest.raises(MissingExtra, match=r"anabranch\[sglang\]"):
        launch.check_flags(launch.command("gpu", model="m", port=1))


@pytest.mark.sglang
@pytest.mark.timeout(300)
def test_every_profile_has_only_flags_that_sglang_knows() -> None:
    """All the flags of all profiles exist in the SGLang that was built; one that does not is named with the nearest."""
    python = str(require_environment().python)
    every = [
        *launch.command("cpu", port=1),
        *launch.command("gpu", model="m", port=1, tp=1, speculative="EAGLE3", draft_model="d")[3:],
        *launch.command("gpu", model="m", port=1, speculative="NGRAM")[3:],
    ]
    assert launch.check_flags(every) == environment.SGLANG_VERSION
    with pytest.raises(ConfigurationError, match=r"no flag --enable-metric; did you mean --enable-metrics\?"):
        launch.check_flags([*launch.command("cpu", port=1), "--enable-metric"], python=python)


SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def process(log: Path | None, code: str = SERVER, ready_s: float = 60.0) -> launch.ServerProcess:
    """A small server with a child of its own."""
    port = launch.free_port()
    command = [sys.executable, "-c", code, str(port)]
    return launch.ServerProcess(command, url=f"http://127.0.0.1:{port}", log=log, ready_s=ready_s)


def child_in(log: Path) -> int:
    """The id of the server's child, from what it prints."""
    return int(log.read_text().split()[1])


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has buried yet does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_soon(pid: int) -> bool:
    """Whether a process ends within a few seconds."""
    deadline = time.monotonic() + 20
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc, and the kernel's help"
)


@needs_proc
def test_leaving_stops_the_server_and_its_children(tmp_path: Path) -> None:
    """A server is ready when entered, and gone with its children when left."""
    log = tmp_path / "log"
    with process(log) as server:
        pid, child = server.pid, child_in(log)
        assert alive(pid)
        assert alive(child)
    assert not alive(pid)
    assert gone_soon(child)
    server.stop()


@needs_proc
async def test_leaving_stops_them_in_async_code_as_well(tmp_path: Path) -> None:
    """The same holds for `async with`, also when its body fails."""
    log = tmp_path / "log"
    server = process(log)

    async def fail_inside() -> None:
        async with server:
            seen.extend((server.pid, child_in(log)))
            raise ZeroDivisionError

    seen: list[int] = []
    with pytest.raises(ZeroDivisionError):
        await fail_inside()
    pid, child = seen
    assert not alive(pid)
    assert gone_soon(child)


@needs_proc
async def test_cancelling_a_start_stops_the_server(tmp_path: Path) -> None:
    """Giving up while a server starts leaves no process."""
    log = tmp_path / "log"
    never = SERVER.replace('"/health"', '"/never"')
    server = process(log, never)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), server:
            raise AssertionError("became ready")
    assert gone_soon(child_in(log))


def test_a_server_that_dies_says_why(tmp_path: Path) -> None:
    """When a server ends before it is ready, the error shows the end of its output and where all of it is."""
    with (
        pytest.raises(ConfigurationError, match=r"(?s)code 3.*no such model.*log"),
        process(tmp_path / "log", "print('no such model'); raise SystemExit(3)"),
    ):
        pass


@needs_proc
def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    """When a server is not ready in time it is stopped, and the error says so."""
    log = tmp_path / "log"
    never = SERVER.replace('"/health"', '"/never"')
    with pytest.raises(BackendTimeout, match="not ready after 1 s"), process(log, never, ready_s=1.0):
        pass
    assert gone_soon(child_in(log))


def test_a_temporary_log_goes_with_a_server_that_was_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file was named, the log is gone after a clean stop, and stays after a failure."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with process(None) as server:
        assert server.log is not None
        assert server.log.exists()
    assert not list(tmp_path.glob("anabranch-server-*"))
    with pytest.raises(ConfigurationError, match="all of it"), process(None, "raise SystemExit(3)"):
        pass
    with process(None) as server:
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert len(list(tmp_path.glob("anabranch-server-*"))) == 2


@needs_proc
def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even when its parent is killed outright, a server does not live on."""
    log = tmp_path / "log"
    parent = f"""
import sys, time
from pathlib import Path
from anabranch.serving import launch
port = launch.free_port()
command = [sys.executable, "-c", {SERVER!r}, str(port)]
with launch.ServerProcess(command, url=f"http://127.0.0.1:{{port}}", log=Path({str(log)!r})) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        assert alive(pid)
        started.kill()
        started.wait()
    assert gone_soon(pid)
    os.kill(
        child_in(log), signal.SIGKILL
    )  # this one knows nothing of its parent's parent; SGLang's children do


def test_in_the_foreground_the_exit_code_is_the_servers(tmp_path: Path) -> None:
    """Run in the foreground, the server's exit code is handed on."""
    assert process(tmp_path / "log", "raise SystemExit(5)").run() == 5


def _flag(command: Sequence[str], flag: str) -> str | None:
    assert command.count(flag) <= 1
    return command[list(command).index(flag) + 1] if flag in command else None


@pytest.mark.parametrize(
    ("gpus", "speculative", "devices", "memory", "tp"),
    [
        ((), None, ("0", "0"), ("0.7", "0.7"), None),
        ((3,), None, ("3", "3"), ("0.7", "0.7"), None),
        ((3,), "NGRAM", ("3", "3"), ("0.62", "0.7"), None),
        ((0, 1), None, ("0", "1"), ("0.85", "0.85"), None),
        ((0, 1, 2), None, ("0,1", "2"), ("0.85", "0.85"), "2"),
    ],
)
def test_target_and_draft_share_gpus(
    gpus: tuple[int, ...],
    speculative: str | None,
    devices: tuple[str, str],
    memory: tuple[str, str],
    tp: str | None,
) -> None:
    """On one GPU both leave room for each other; with several the last one is the draft's."""
    target, draft = launch.pair(
        "gpu", model="big", draft_server="small", port=31000, gpus=gpus, speculative=speculative
    )
    assert (target.role, draft.role) == ("target", "draft")
    assert tuple(each.environment["CUDA_VISIBLE_DEVICES"] for each in (target, draft)) == devices
    assert tuple(_flag(each.command, "--mem-fraction-static") for each in (target, draft)) == memory
    assert _flag(target.command, "--tp-size") == tp
    assert _flag(draft.command, "--tp-size") is None
    assert (_flag(target.command, "--port"), _flag(draft.command, "--port")) == ("31000", "31001")


def test_when_one_server_of_two_ends_the_other_is_stopped() -> None:
    """The role and the code of the one that ended are told; nothing is left running."""
    serve = "import http.server, sys, threading, os\n" + (
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        "if len(sys.argv) > 2: threading.Timer(1.5, os._exit, (7,)).start()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    ports = [launch.free_port(), launch.free_port()]
    planned = [
        launch.Planned(
            role=role,
            command=[sys.executable, "-c", serve, str(port), *dies],
            where=f"127.0.0.1:{port}",
        )
        for role, port, dies in (("target", ports[0], []), ("draft", ports[1], ["dies"]))
    ]
    assert launch.run_all(planned) == ("draft", 7)
    for port in ports:
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
