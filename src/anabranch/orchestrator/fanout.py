"""Fan-out: the same work for many items side by side, under a failure policy; and many lives as they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from anabranch.orchestrator.errors import BudgetExhausted, TooFewSucceeded
from anabranch.orchestrator.policy import Outcome, Policy

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run

T = TypeVar("T")
R = TypeVar("R")


async def fan_out(
    run: Run, work: Callable[[T], Awaitable[R]], items: Iterable[T], policy: Policy
) -> list[Outcome[R]]:
    """See `Run.map`."""
    todo = list(items)
    outcomes: list[Outcome[R]] = [Outcome(index=index) for index in range(len(todo))]
    ended = succeeded = 0
    enough = asyncio.Event()

    async def attempt(index: int, item: T) -> None:
        nonlocal ended, succeeded
        try:
            outcomes[index] = Outcome(index=index, state="done", value=await work(item))
            succeeded += 1
        except policy.tolerates as error:
            if policy.at_least is None:
                raise
            outcomes[index] = Outcome(index=index, state="failed", error=error)
        ended += 1
        plenty = policy.enough is not None and succeeded >= policy.enough
        if plenty or ended == len(todo) or policy.hopeless(failed=ended - succeeded, total=len(todo)):
            enough.set()

    async with run.scope() as scope:
        for index, item in enumerate(todo):
            scope.start(attempt(index, item))
        if todo:
            await enough.wait()
    _check(run, outcomes, succeeded, policy)
    return outcomes


def _check(run: Run, outcomes: list[Outcome[R]], succeeded: int, policy: Policy) -> None:
    failures = [outcome.error for outcome in outcomes if outcome.error is not None]
    needed = policy.at_least or 0
    if outcomes and succeeded < needed:
        exhausted = next((error for error in failures if isinstance(error, BudgetExhausted)), None)
        raise exhausted or TooFewSucceeded(succeeded, needed, failures)
    for message, count in Counter(map(str, failures)).items():
        run.warn(f"{count} of {len(outcomes)} branches failed: {message}")


class Settling(Protocol):
    """Something that runs and then ends: a live generation, a live answer."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back at its end."""


L = TypeVar("L", bound=Settling)


async def as_completed(lives: Iterable[L]) -> AsyncIterator[L]:
    """See `Run.as_completed`."""
    ended: asyncio.Queue[L] = asyncio.Queue()
    put, pending = ended.put_nowait, 0
    for live in lives:
        pending += 1
        live.when_settled(partial(put, live))
    for _ in range(pending):
        yield await ended.get()
