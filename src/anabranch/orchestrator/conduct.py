"""Conducts a strategy: opens its run, minds the deadline, and makes the answer, whatever has happened.

A run that reaches a limit of its budget answers with the best that it has. A strategy that fails raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anabranch.orchestrator.accounting import usage_of
from anabranch.orchestrator.answer import Answer, AnswerFinish, Timing
from anabranch.orchestrator.errors import AnabranchError, BudgetExhausted, Limit
from anabranch.orchestrator.events import AnswerDelta
from anabranch.orchestrator.records import RunRecords
from anabranch.orchestrator.state import GRACE_S, RunState

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run
    from anabranch.orchestrator.strategy import Strategy


async def conduct(run: Run, strategy: Strategy) -> Answer:
    """Run a strategy to its answer.

    Raises:
        AnabranchError: the strategy, or a generation that it needed, failed.
    """
    began = run.state.now()
    try:
        async with deadline(run.state), run.root():
            await strategy(run)
    except BudgetExhausted as error:
        run.cut_short = error.limit
    except AnabranchError as error:
        # After a limit a strategy may stumble over what was cut; what it has written so far still counts.
        if not _limit_of(run):
            raise
        run.warn(str(error))
    return answer_of(run, strategy, began)


def answer_of(run: Run, strategy: Strategy, began: float, *, cancelled: bool = False) -> Answer:
    """The answer as far as it was written."""
    state, output, records = run.state, run.output, run.records
    if not output.text and output.proposal:
        run.emit(output.proposal)
    limit = _limit_of(run)
    if limit is not None:
        reached = "deadline passed" if limit == "deadline" else f"limit on {limit} was reached"
        run.warn(f"the budget's {reached}: this is the best so far")
    state.discard_useless(records.numbers)
    first = output.first_token_s
    return Answer(
        text=output.text,
        reasoning=output.reasoning,
        strategy=strategy.name,
        active=output.fell_back is None,
        fell_back=output.fell_back,
        warnings=tuple(output.warnings),
        figures=dict(output.figures),
        run_id=state.run_id,
        finish_reason="cancelled" if cancelled else _finish_reason(limit, output.finish_reason),
        usage=usage_of(records),
        timing=Timing(wall_s=state.now() - began, first_token_s=None if first is None else first - began),
        model=_model(records),
        generations=records,
    )


@asynccontextmanager
async def deadline(state: RunState) -> AsyncIterator[None]:
    """Stops what is in flight at the run's deadline, and the strategy itself a little later.

    Raises:
        BudgetExhausted: the strategy did not come to an end in the time of grace.
    """
    seconds = state.ledger.budget.deadline_s
    if seconds is None or state.minding_deadline:
        yield
        return
    state.minding_deadline = True
    timer = asyncio.get_running_loop().call_at(state.began + seconds, state.exhaust, "deadline")
    try:
        async with asyncio.timeout_at(state.began + seconds + GRACE_S) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise BudgetExhausted("deadline", f"{seconds} s are over") from None
    finally:
        timer.cancel()


class LiveAnswer:
    """The answer of a delegated run while it is being written. Awaitable, iterable and cancellable like a generation.

    `await live` gives the `Answer`, also of a cancelled one, as far as it was written.
    """

    def __init__(self, run: Run, strategy: Strategy) -> None:
        self._run, self._strategy = run, strategy
        self._answer: Answer | None = None
        self._task: asyncio.Task[None] | None = None

    async def conduct(self) -> None:
        """Run it to its end."""
        began = self._run.state.now()
        try:
            self._answer = await conduct(self._run, self._strategy)
        except asyncio.CancelledError:
            self._answer = answer_of(self._run, self._strategy, began, cancelled=True)
            self._run.output.pieces.close()
            raise
        except Exception as error:  # noqa: BLE001 - kept, and raised to whoever awaits the answer
            self._run.output.pieces.close(error)
        else:
            self._run.output.pieces.close()

    def attach(self, task: asyncio.Task[None]) -> None:
        """Name the task that conducts it. One that is cancelled before its first step runs none of its code."""
        self._task = task
        task.add_done_callback(self._never_ran)

    def _never_ran(self, _: asyncio.Task[None]) -> None:
        if not self.done:
            self._answer = answer_of(self._run, self._strategy, self._run.state.now(), cancelled=True)
            self._run.output.pieces.close()

    @property
    def text(self) -> str:
        """What has been written so far."""
        return self._run.output.text

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._run.output.pieces.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended it, if one did."""
        return self._run.output.pieces.error

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once it has ended; at once if it has."""
        self._run.output.pieces.when_closed(callback)

    def cancel(self) -> None:
        """Stop it and all of its branches."""
        if self._task is not None:
            self._task.cancel()

    def __aiter__(self) -> AsyncIterator[AnswerDelta]:
        return aiter(self._run.output.pieces)

    def __await__(self) -> Generator[object, None, Answer]:
        return self._whole().__await__()

    async def _whole(self) -> Answer:
        pieces = self._run.output.pieces
        await pieces.ended()
        if pieces.error is not None:
            raise pieces.error
        assert self._answer is not None
        return self._answer


def _limit_of(run: Run) -> Limit | None:
    """The limit that this very run ran into: it was ended by it, or a generation of its own was refused or cut."""
    if run.cut_short is not None:
        return run.cut_short
    reasons = run.records.finish_reasons
    if "deadline" in reasons:
        return "deadline"
    if reasons & {"budget", "refused"}:
        return next(iter(run.state.ledger.reached), "tokens")
    return None


def _finish_reason(limit: Limit | None, reason: AnswerFinish) -> AnswerFinish:
    if limit is None:
        return reason
    return "deadline" if limit == "deadline" else "budget"


def _model(records: RunRecords) -> str:
    """The model that wrote most of the target's part."""
    return next((record.model for record in records if record.role == "target" and record.model), "")
