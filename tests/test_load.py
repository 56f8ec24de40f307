"""Many requests through one Orchestrator."""

from __future__ import annotations

import asyncio
import statistics

from anabranch import Answer, Limits, Orchestrator, Run
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Three:
    """An outline and three points."""

    name = "three"

    async def __call__(self, run: Run) -> None:
        outline = await run.generate(run.question)
        fork = run.question.after(outline)
        for live in [run.generate(fork.user(f"{outline.text} {i}")) for i in range(3)]:
            await run.relay(live)


def test_a_thousand_requests_at_once_finish_fairly_and_apart() -> None:
    """1,000 concurrent asks: each gets its own answer, none waits far longer than the others, nothing is left over."""

    async def scenario() -> tuple[list[Answer], list[float]]:
        backend = ScriptedBackend(lambda call: Reply.of(call.branch.question, delay_s=1.0))
        ends: list[float] = []
        answers: list[Answer] = []
        async with Orchestrator(backend, limits=Limits(start=100, most=100)) as orch:

            async def one(index: int) -> None:
                answers.append(await orch.ask(f"q{index}", strategy=Three()))
                ends.append(asyncio.get_running_loop().time())

            async with asyncio.TaskGroup() as group:
                for index in range(1000):
                    group.create_task(one(index))
        assert backend.most_running == 100
        assert len(asyncio.all_tasks()) == 1
        return answers, ends

    answers, ends = run_virtual(scenario())
    assert len({answer.text for answer in answers}) == len({answer.run_id for answer in answers}) == 1000
    assert all(answer.warnings == () and answer.usage.branches == 4 for answer in answers)
    # 4,000 calls of 1 s on 100 slots take 40 s; fair sharing ends nobody before the last quarter.
    assert max(ends) == 40.0
    assert statistics.median(ends) > 30.0


def test_a_small_request_is_quick_beside_a_huge_one() -> None:
    """A fan-out of 1,000 on 10 slots does not hold up a question that comes after it."""

    class Huge:
        name = "huge"

        async def __call__(self, run: Run) -> None:
            async def one(index: int) -> str:
                return (await run.generate(run.question.user(str(index)))).text

            await run.map(one, range(1000))

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("x", delay_s=1.0))
        async with (
            Orchestrator(backend, limits=Limits(start=10, most=10)) as orch,
            asyncio.TaskGroup() as group,
        ):
            huge = group.create_task(orch.ask("big", strategy=Huge()))
            await asyncio.sleep(5)
            small = await orch.ask("small")
            assert small.timing.wall_s <= 2.0
            assert not huge.done()

    run_virtual(scenario())
