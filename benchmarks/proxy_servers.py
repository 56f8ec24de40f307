"""Servers in processes of their own: how to start each proxy that is measured, and what a process has used. Linux only.

CPU time is user and system time of a process and its children, in all threads, from `/proc`; it counts in ticks of
10 ms, so that a count should be worth a second or so.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy_fan import NAME as FAN
from proxy_stub import MODEL

HERE = Path(__file__).parent
RELAY = "bare relay"
OURS = "anabranch"
START_S = 120.0
STOP_S = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEBIBYTE = 2**20

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A proxy to be measured.

    Attributes:
        command: how to start it, given its port and its upstream's.
        ready: path that is answered with 200 once it serves.
        configure: path and body of a request that sets it up, given the upstream's port.
        plain: what a request to be passed on has beside the usual; `branches` the same for N branches.
        rival: somebody else's.
        passes: plain requests are measured.
    """

    name: str
    command: Callable[[int, int], Sequence[str]]
    ready: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    configure: Callable[[int], tuple[str, Body]] | None = None
    plain: Body = field(default_factory=dict)
    branches: Callable[[int], Body] | None = None
    rival: bool = False
    passes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A process that serves. `start_s` is the time from its start to its first good answer."""

    name: str
    port: int
    process: Process
    start_s: float

    def cpu_s(self) -> float:
        """CPU time that it has used."""
        return sum(_cpu_s(pid) for pid in _tree(self.process.pid))

    def memory(self) -> float:
        """Resident memory in MiB."""
        return sum(_resident(pid) for pid in _tree(self.process.pid))


def relay() -> Contender:
    """The yardstick."""
    return Contender(
        name=RELAY,
        command=lambda port, upstream: [
            *(sys.executable, str(HERE / "proxy_relay.py"), "--port", str(port)),
            *("--upstream", f"http://127.0.0.1:{upstream}/v1"),
        ],
    )


def anabranch(backend: str, python_path: str) -> Contender:
    """`anabranch serve` as it is, in front of `sglang`, or of `openai`: passing on is the same for both."""
    urls = {"sglang": "sglang://127.0.0.1:{}", "openai": "http://127.0.0.1:{}/v1"}
    return Contender(
        name=OURS if backend == "sglang" else f"{OURS}, OpenAI's API",
        passes=backend == "sglang",
        command=lambda port, upstream: [
            *(sys.executable, "-m", "anabranch", "serve", "--port", str(port)),
            *("--backend", urls[backend].format(upstream)),
        ],
        environment={"PYTHONPATH": python_path},
        branches=lambda count: {"anabranch": {"strategy": FAN, "params": {"branches": count}}},
    )


def litellm(venv: Path, folder: Path) -> Contender:
    """LiteLLM's proxy with one worker, and as little logging as it can."""

    def command(port: int, upstream: int) -> Sequence[str]:
        parameters = {
            "model": f"openai/{MODEL}",
            "api_base": f"http://127.0.0.1:{upstream}/v1",
            "api_key": "none",
        }
        config = folder / "litellm.yaml"  # JSON is YAML
        config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
        return [str(venv / "bin/litellm"), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]

    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # It is asked for no key, as ours is not.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return Contender(
        name="LiteLLM", command=command, ready="/health/liveliness", environment=environment, rival=True
    )


def its_hub(venv: Path) -> Contender:
    """its_hub's service. All that it does is self-consistency; plain is a budget of one."""

    def configure(upstream: int) -> tuple[str, Body]:
        return "/configure", {
            "endpoint": f"http://127.0.0.1:{upstream}/v1",
            "api_key": "none",
            "model": MODEL,
            "alg": "self-consistency",
            "regex_patterns": ["(.*)"],
        }

    return Contender(
        name="its_hub",
        command=lambda port, _: [str(venv / "bin/its-iaas"), "--port", str(port), "--log-level", "ERROR"],
        ready="/v1/models",
        configure=configure,
        plain={"budget": 1},
        branches=lambda count: {"budget": count},
        rival=True,
    )


def optillm(venv: Path) -> Contender:
    """optillm, told to do nothing of its own."""
    return Contender(
        name="optillm",
        command=lambda port, upstream: [
            *(str(venv / "bin/optillm"), "--port", str(port), "--approach", "none", "--log", "error"),
            *("--base-url", f"http://127.0.0.1:{upstream}/v1"),
        ],
        environment={"OPENAI_API_KEY": "none"},
        rival=True,
    )


@asynccontextmanager
async def started(contender: Contender, upstream: int) -> AsyncIterator[Server]:
    """The proxy, running and ready, in front of the server at the port `upstream`."""
    port = free_port()
    command = contender.command(port, upstream)
    async with process(contender.name, command, port, contender.ready, contender.environment) as server:
        if contender.configure is not None:
            path, body = contender.configure(upstream)
            await asyncio.to_thread(_ask, port, path, json.dumps(body).encode())
        yield server


@asynccontextmanager
async def stub() -> AsyncIterator[Server]:
    """The model server."""
    port = free_port()
    command = [sys.executable, str(HERE / "proxy_stub.py"), "--port", str(port)]
    async with process("stub", command, port, "/v1/models", {}) as server:
        yield server


@asynccontextmanager
async def process(
    name: str, command: Sequence[str], port: int, ready: str, environment: Mapping[str, str]
) -> AsyncIterator[Server]:
    """A process that serves at this port, once it answers; stopped at the end.

    Raises:
        RuntimeError: it ended, or is not ready after `START_S`.
    """
    began = time.perf_counter()
    running = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=None if os.environ.get("VERBOSE") else DEVNULL,
        start_new_session=True,
    )
    try:
        while not await asyncio.to_thread(_ready, port, ready):
            if running.returncode is not None or time.perf_counter() - began > START_S:
                raise RuntimeError(f"{name} does not serve; with VERBOSE=1 it says why: {' '.join(command)}")
            await asyncio.sleep(0.005)
        yield Server(name=name, port=port, process=running, start_s=time.perf_counter() - began)
    finally:
        await _stop(running)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def _ready(port: int, path: str) -> bool:
    try:
        # Cheaper than a request that fails: most tries come before anybody listens.
        socket.create_connection(("127.0.0.1", port), 1).close()
        _ask(port, path)
    except (OSError, urllib.error.URLError):
        return False
    return True


def _ask(port: int, path: str, body: bytes | None = None) -> None:
    headers = {} if body is None else {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=30).close()


async def _stop(running: Process) -> None:
    """With all that it started: it has a session of its own."""
    if running.returncode is None:
        running.terminate()
    try:
        await asyncio.wait_for(running.wait(), STOP_S)
    except TimeoutError:
        os.killpg(running.pid, signal.SIGKILL)
        await running.wait()


def _tree(pid: int) -> Iterator[int]:
    """A process and its children, and theirs."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _tree(int(child))


def _cpu_s(pid: int) -> float:
    return ticks(Path(f"/proc/{pid}/stat").read_text()) / _TICKS


def ticks(stat: str) -> int:
    """User and system time in a line of `/proc/PID/stat`; the name in it may have blanks and brackets."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / _MEBIBYTE
