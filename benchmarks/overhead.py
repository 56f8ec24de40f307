"""What the engine itself costs, in CPU time and memory for a generation, on the scripted backend.

Beside it stands the same backend without an engine, each stream read by a plain task. Replies come in one burst, or
paced: they give way to the event loop before each piece, as replies from a socket do. The clock is virtual, so that
nothing is waited for. It does not measure what a real backend costs: HTTP, JSON, token ids.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from report import Report, finish, parser

from anabranch import Answer, Branch, Generation, Limits, Orchestrator, Run
from anabranch.orchestrator.backend import Call, Delta
from anabranch.orchestrator.generation import LiveGeneration
from anabranch.testing import Reply, ScriptedBackend, run_virtual

FAN_OUT = 1_000
CHUNKS = tuple(f"token{index} " for index in range(20))
REPLY = Reply(chunks=CHUNKS)
KINDS = ("burst", "paced")

Work = Callable[[], Coroutine[Any, Any, object]]


class Paced(ScriptedBackend):
    """Gives way to the event loop before each piece."""

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Act out the reply for this call."""
        async for delta in super().stream(call):
            await asyncio.sleep(0)
            yield delta


def backend(kind: str) -> ScriptedBackend:
    """A backend that answers every call alike."""
    return (Paced if kind == "paced" else ScriptedBackend)(lambda call: REPLY, keep_calls=False)


class Fan:
    """Waves of many generations from one prefix; reads each of them, and keeps what `keep` makes of it."""

    name = "fan"

    def __init__(
        self, generations: int, fan_out: int, keep: Callable[[LiveGeneration, Generation], object] | None = None
    ) -> None:
        self._waves = [min(fan_out, generations - start) for start in range(0, generations, fan_out)]
        self._keep = keep
        self.kept: list[object] = []

    async def __call__(self, run: Run) -> None:
        """Answer nothing."""
        for width in self._waves:
            lives = [run.generate(run.question) for _ in range(width)]
            async for live in run.as_completed(lives):
                generation = await live
                if self._keep is not None:
                    self.kept.append(self._keep(live, generation))


async def with_engine(kind: str, strategy: Fan, *, listen: bool = False) -> Answer:
    """The generations as one run."""
    heard = [lambda event: None] if listen else []
    async with Orchestrator(backend(kind), limits=Limits(start=FAN_OUT, most=FAN_OUT)) as orch:
        return await orch.ask("question", strategy=strategy, listeners=heard)


async def without_engine(kind: str, generations: int, fan_out: int) -> None:
    """The same streams, each read by a task of its own."""
    source, branch = backend(kind), Branch.of("question")

    async def read() -> None:
        async for _ in source.stream(Call(rid=uuid.uuid4().hex, branch=branch)):
            pass

    for start in range(0, generations, fan_out):
        async with asyncio.TaskGroup() as group:
            for _ in range(min(fan_out, generations - start)):
                group.create_task(read())


def cpu_us(work: Work, generations: int) -> float:
    """CPU microseconds for a generation."""

    async def timed() -> float:
        gc.collect()
        began = time.process_time()
        await work()
        return (time.process_time() - began) / generations * 1e6

    return run_virtual(timed())


def ways(kind: str, count: int, fan_out: int) -> tuple[Work, ...]:
    """The same generations: by the backend alone, by the engine, and by the engine with a listener."""
    return (
        lambda: without_engine(kind, count, fan_out),
        lambda: with_engine(kind, Fan(count, fan_out)),
        lambda: with_engine(kind, Fan(count, fan_out), listen=True),
    )


def measure_cpu(counts: Sequence[int], *, fan_out: int = FAN_OUT, repeats: int = 3) -> Report:
    """CPU time for a generation, with and without the engine; the last count over the first is the growth.

    The least of some repeats counts, since other load only adds; counts take turns, so that a slower minute hits all.
    """
    report = Report(
        title=f"CPU time for a generation of {len(CHUNKS)} pieces, fan-out {fan_out:,}, µs",
        columns=("replies", "generations", "backend alone", "engine", "engine / alone", "with a listener"),
    )
    for kind in KINDS:
        rounds = [
            [[cpu_us(way, count) for way in ways(kind, count, fan_out)] for count in counts]
            for _ in range(repeats)
        ]
        least = [[min(costs) for costs in zip(*same, strict=True)] for same in zip(*rounds, strict=True)]
        for count, (alone, engine, heard) in zip(counts, least, strict=True):
            report.row(kind, count, alone, engine, engine / alone, heard)
        report.target(f"µs for a generation, {kind}", max(engine for _, engine, _ in least), 250)
        if len(counts) > 1:
            grown = f"growth from {counts[0]:,} to {counts[-1]:,} generations, {kind}"
            report.target(grown, least[-1][1] / least[0][1], 1.10)
    return report


def kept_bytes(strategy: Fan, generations: int) -> float:
    """Bytes that are still there for each finished generation when the run is over."""

    async def held() -> float:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        answer = await with_engine("burst", strategy)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
        assert answer.usage.branches == generations
        return kept / generations

    run_virtual(with_engine("burst", Fan(1, 1)))  # what is imported and cached at first use does not count
    tracemalloc.start()
    try:
        return run_virtual(held())
    finally:
        tracemalloc.stop()


def measure_memory(generations: int, *, fan_out: int = FAN_OUT) -> Report:
    """Memory for a finished generation, by what is kept of it."""
    text = sys.getsizeof("".join(CHUNKS))
    report = Report(
        title=f"Memory kept for a finished generation of {len(CHUNKS)} pieces ({generations:,} in one run), bytes",
        columns=("what is kept", "all", "of it text", "without text"),
    )
    for name, keep, texts, held_to in (
        ("its record, in the answer", None, 0, True),
        ("and its Generation, by the strategy", lambda live, generation: generation, text, True),
        ("and its LiveGeneration with all pieces", lambda live, generation: live, text, False),
    ):
        kept = kept_bytes(Fan(generations, fan_out, keep), generations)
        report.row(name, kept, texts, kept - texts)
        if held_to:
            report.target(f"bytes beside the text: {name}", kept - texts, 2048)
    return report


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--generations", type=int, nargs="+", default=[10_000, 100_000], metavar="N")
    options.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    chosen = options.parse_args()
    finish([measure_cpu(chosen.generations, repeats=chosen.repeats), measure_memory(10_000)], chosen)
