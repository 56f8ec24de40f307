"""What the proxy costs: CPU time of its process for a request, memory, and the time that it takes to start.

In front of a stub that has every answer ready, under load from a client that costs little; each in a process of its
own. Beside it, by turns in the same run, stands a bare relay of Starlette and aiohttp, and whatever rivals there are:
each in its own virtual environment, named on the command line. The least of some repeats counts, since other load
only adds. It does not measure latency: on a machine with few cores that is mostly the client's and the stub's.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import proxy_fan
import proxy_load
import proxy_servers
import uvloop
from proxy_servers import OURS, RELAY, Contender, Server
from proxy_stub import MODEL, PACED, PAUSE_S, PIECES
from report import Report, finish, parser

LOADS = (1, 16, 64)
"""Requests in flight."""
PACED_LOAD = 16
"""With more, pieces that come one by one pile up and are read together."""
MANY_PIECES = 5 * PIECES
BRANCHES = (1, 4, 16)
FEW = 4
"""Branches of the run whose tokens come one by one."""
BRANCH_TOKENS = 20
WARM_UP = 20
LEAST = 10
QUESTION = [{"role": "user", "content": "What is there to say about rivers that part and meet again?"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kind of request at one load.

    Attributes:
        paced: the pieces come one by one.
        branches: of a strategy; None to pass through.
    """

    inflight: int
    stream: bool = False
    pieces: int = PIECES
    paced: bool = False
    branches: int | None = None

    def body(self, contender: Contender) -> dict[str, Any]:
        """The request for a contender."""
        body = {"model": MODEL, "messages": QUESTION, "max_tokens": self.pieces}
        body |= {"stream": True} if self.stream else {}
        body |= {PACED: True} if self.paced else {}
        if self.branches is None:
            return body | dict(contender.plain)
        assert contender.branches is not None
        return body | dict(contender.branches(self.branches))


@dataclass(kw_only=True)
class Found:
    """Figures by contender: milliseconds of CPU for a request, MiB, seconds."""

    cpu_ms: dict[str, dict[Job, float]] = field(default_factory=lambda: defaultdict(dict))
    start_s: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    loaded: dict[str, float] = field(default_factory=dict)

    def least(self, name: str, job: Job, cost: float) -> None:
        """Keep a count if it is less than those before."""
        self.cpu_ms[name][job] = min(cost, self.cpu_ms[name].get(job, cost))

    def at_all_loads(self, name: str, **job: Any) -> list[float]:
        """The cost of this kind of request."""
        return [self.cpu_ms[name][Job(inflight=load, **job)] for load in LOADS]

    def split(self, name: str, load: int, *, paced: bool = False) -> tuple[float, float]:
        """What a stream costs without its pieces, and what a piece costs."""
        few, many = (
            self.cpu_ms[name][Job(inflight=load, stream=True, paced=paced, pieces=pieces)]
            for pieces in (PIECES, MANY_PIECES)
        )
        piece = (many - few) / (MANY_PIECES - PIECES)
        return few - PIECES * piece, piece


def jobs(contender: Contender) -> Iterator[Job]:
    """What is measured of a contender: of rivals, what is enough for a comparison."""
    ours = contender.passes and not contender.rival
    for load in LOADS:
        if contender.passes:
            yield Job(inflight=load)
            yield Job(inflight=load, stream=True)
        if ours:
            yield Job(inflight=load, stream=True, pieces=MANY_PIECES)
        if contender.branches is not None:
            for count in BRANCHES:
                yield Job(inflight=load, branches=count, pieces=BRANCH_TOKENS)
    if contender.branches is not None and not contender.rival:
        yield Job(inflight=PACED_LOAD, branches=FEW, pieces=BRANCH_TOKENS, paced=True)
    if ours:
        for pieces in (PIECES, MANY_PIECES):
            yield Job(inflight=PACED_LOAD, stream=True, pieces=pieces, paced=True)


async def measure(
    contenders: Sequence[Contender], *, repeats: int = 3, seconds: float = 0.7, starts: int = 3
) -> Found:
    """Start all, and measure them by turns: each job of each of them, again and again.

    Args:
        seconds: CPU time that a count should take.
        starts: how often ours and the relay are started for the time that it takes.
    """
    found = Found()
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(proxy_servers.stub())
        for contender in contenders:
            for _ in range(1 if contender.rival else starts - 1):
                await _start_once(contender, stub.port, found)
        running = [
            (each, await stack.enter_async_context(proxy_servers.started(each, stub.port)))
            for each in contenders
        ]
        for contender, server in running:
            await _warm_up(contender, server)
            found.start_s[server.name] = min(server.start_s, found.start_s.get(server.name, server.start_s))
            found.idle[server.name] = server.memory()
        for _ in range(repeats):
            await _one_round(running, found, seconds)
        for _, server in running:
            found.loaded[server.name] = server.memory()
    return found


async def _start_once(contender: Contender, upstream: int, found: Found) -> None:
    async with proxy_servers.started(contender, upstream) as server:
        known = found.start_s.get(contender.name, server.start_s)
        found.start_s[contender.name] = min(server.start_s, known)


async def _warm_up(contender: Contender, server: Server) -> None:
    """A few requests of each kind: what is imported and looked up at first use does not count."""
    for job in jobs(contender):
        if job.inflight == 1:
            await _send(contender, server, job, WARM_UP)


async def _one_round(running: Sequence[tuple[Contender, Server]], found: Found, seconds: float) -> None:
    """All jobs, each of all contenders that have it, one after the other."""
    whose: dict[Job, list[tuple[Contender, Server]]] = defaultdict(list)
    for contender, server in running:
        for job in jobs(contender):
            whose[job].append((contender, server))
    for job, having in whose.items():
        for contender, server in having:
            guess = found.cpu_ms[server.name].get(job) or await _cost_ms(contender, server, job, LEAST)
            total = max(round(seconds / max(guess, 0.1) * 1000), 2 * job.inflight, LEAST)
            found.least(server.name, job, await _cost_ms(contender, server, job, total))


async def _cost_ms(contender: Contender, server: Server, job: Job, total: int) -> float:
    """Milliseconds of the server's CPU time for a request."""
    before = server.cpu_s()
    await _send(contender, server, job, total)
    return (server.cpu_s() - before) / total * 1000


async def _send(contender: Contender, server: Server, job: Job, total: int) -> None:
    content = proxy_load.request(server.port, job.body(contender))
    try:
        await proxy_load.send(server.port, content, total=total, inflight=job.inflight)
    except (proxy_load.BadReply, TimeoutError) as error:
        raise RuntimeError(f"{server.name}, {job}: {error}") from error


def costs(found: Found, contenders: Sequence[Contender], *, stream: bool) -> Report:
    """What passing on costs, beside the bare relay."""
    kind = f"streamed, {PIECES} pieces at once" if stream else "whole reply"
    report = Report(
        title=f"CPU time for a plain request, {kind}, ms",
        columns=("proxy", *(f"{load} in flight" for load in LOADS), "over the relay, at most"),
    )
    yardstick = found.at_all_loads(RELAY, stream=stream)
    for name in (each.name for each in contenders):
        at_loads = found.at_all_loads(name, stream=stream)
        over = max(cost / bare for cost, bare in zip(at_loads, yardstick, strict=True))
        report.row(name, *at_loads, over)
        if name == OURS and not stream:
            report.target("ms for a plain request, at any load", max(at_loads), 0.8)
        if name == OURS:
            report.target(f"over the bare relay, {kind}, at any load", over, 1.5)
    return report


def pieces(found: Found, contenders: Sequence[Contender]) -> Report:
    """What a stream costs by itself, and each piece of it."""
    report = Report(
        title="CPU time for a streamed plain request, by its pieces",
        columns=("proxy", "pieces come", "in flight", "without pieces, ms", "a piece, µs"),
        numbers_from=2,
    )
    for name in (each.name for each in contenders if not each.rival):
        for load in LOADS:
            base, piece = found.split(name, load)
            report.row(name, "at once", load, base, piece * 1000)
        base, piece = found.split(name, PACED_LOAD, paced=True)
        report.row(name, f"every {PAUSE_S * 1000:g} ms", PACED_LOAD, base, piece * 1000)
    each_load = [found.split(OURS, load) for load in LOADS]
    report.target("ms for a stream without its pieces, at any load", max(base for base, _ in each_load), 1.2)
    report.target(
        "ms for a piece that comes with others, at any load", max(piece for _, piece in each_load), 0.03
    )
    return report


def strategies(found: Found, contenders: Sequence[Contender]) -> Report:
    """What a strategy of N branches costs."""
    report = Report(
        title=f"CPU time for a request with N branches of {BRANCH_TOKENS} tokens each, ms",
        columns=("proxy", "tokens come", "N", *(f"{load} in flight" for load in LOADS), "target"),
        numbers_from=2,
    )
    for contender in (each for each in contenders if each.branches is not None):
        for count in BRANCHES:
            at_loads = found.at_all_loads(contender.name, branches=count, pieces=BRANCH_TOKENS)
            at_most = math.nan if contender.rival else 0.5 * count + 1
            report.row(contender.name, "at once", count, *at_loads, at_most)
            if not contender.rival:
                report.target(f"ms, {contender.name}, N = {count}", max(at_loads), at_most)
        if not contender.rival:
            job = Job(inflight=PACED_LOAD, branches=FEW, pieces=BRANCH_TOKENS, paced=True)
            paced = [found.cpu_ms[contender.name][job] if load == PACED_LOAD else math.nan for load in LOADS]
            report.row(contender.name, f"every {PAUSE_S * 1000:g} ms", FEW, *paced, math.nan)
    return report


def resources(found: Found, contenders: Sequence[Contender]) -> Report:
    """Memory and start."""
    report = Report(
        title="Memory of the process, MiB, and time from its start to its first answer, s",
        columns=("proxy", "idle", "after the load", "start"),
    )
    for name in (each.name for each in contenders):
        report.row(name, found.idle[name], found.loaded[name], found.start_s[name])
    report.target("MiB, idle, after a few requests of each kind", found.idle[OURS], 100)
    report.target("s from the start to the first answer", found.start_s[OURS], 1.5)
    return report


def reports(found: Found, contenders: Sequence[Contender]) -> list[Report]:
    """All tables."""
    passing = [each for each in contenders if each.passes]
    return [
        costs(found, passing, stream=False),
        costs(found, passing, stream=True),
        pieces(found, passing),
        strategies(found, contenders),
        resources(found, contenders),
    ]


def contenders_of(chosen: argparse.Namespace, folder: Path, python_path: str) -> list[Contender]:
    """The relay, ours in front of both APIs, and the rivals that were named."""
    contenders = [
        proxy_servers.relay(),
        proxy_servers.anabranch("sglang", python_path),
        proxy_servers.anabranch("openai", python_path),
    ]
    if chosen.litellm:
        contenders.append(proxy_servers.litellm(chosen.litellm, folder))
    named = ((proxy_servers.its_hub, chosen.its_hub), (proxy_servers.optillm, chosen.optillm))
    return contenders + [make(venv) for make, venv in named if venv]


def main() -> None:
    """The command."""
    options = parser(__doc__)
    for rival in ("litellm", "its-hub", "optillm"):
        options.add_argument(f"--{rival}", type=Path, metavar="VENV", help="a virtual environment that has it")
    options.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    options.add_argument("--seconds", type=float, default=0.7, help="CPU time that a count should take")
    chosen = options.parse_args()
    with proxy_fan.installed() as python_path, TemporaryDirectory(prefix="anabranch-proxies-") as folder:
        contenders = contenders_of(chosen, Path(folder), python_path)
        found = uvloop.run(measure(contenders, repeats=chosen.repeats, seconds=chosen.seconds))
    finish(reports(found, contenders), chosen)


if __name__ == "__main__":
    main()
