"""The engine under test: strategies made of functions, run on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch import Answer, Budget, Orchestrator, Run, Sampling
from anabranch.orchestrator.events import Event
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Do:
    """A strategy made of a function."""

    name = "do"

    def __init__(self, work: Callable[[Run], Awaitable[None]]) -> None:
        self._work = work

    async def __call__(self, run: Run) -> None:
        await self._work(run)


def ask(
    backend: ScriptedBackend,
    work: Callable[[Run], Awaitable[None]],
    *,
    budget: Budget | None = None,
    sampling: Sampling | None = None,
    listen: Callable[[Event], None] | None = None,
) -> Answer:
    """Run a strategy on the virtual clock; whatever is left over afterwards is a failure."""

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            answer = await orch.ask(
                "Q",
                strategy=Do(work),
                budget=budget,
                sampling=sampling,
                listeners=[listen] if listen else [],
            )
            assert all(lane.in_flight == lane.waiting == 0 for lane in orch.lanes)
        assert len(asyncio.all_tasks()) == 1
        assert backend.running == 0
        return answer

    return run_virtual(scenario())


def words(**delays: float) -> ScriptedBackend:
    """Answers each question with its own last word, after its delay; `_` is the outline."""
    return ScriptedBackend(
        lambda call: Reply.of(f"{call.branch.question}!", delay_s=delays.get(call.branch.question, 0.0))
    )
