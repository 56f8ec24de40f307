"""Drive: the task behind one generation. It takes the call through the scheduler and writes down what happens.

Invariant: however it ends, the live generation is settled, its record is complete, and its event is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from anabranch.orchestrator import events
from anabranch.orchestrator.accounting import GenerationRecord
from anabranch.orchestrator.backend import (
    Call,
    Capabilities,
    Delta,
    End,
    FinishReason,
    TokenUsage,
)
from anabranch.orchestrator.errors import AnabranchError, BackendError, BudgetExhausted, UnsupportedCapability
from anabranch.orchestrator.generation import Generation, LiveGeneration
from anabranch.orchestrator.scheduler import Job
from anabranch.orchestrator.scope import Scope
from anabranch.orchestrator.state import Role, RunState


class Drive:
    """Runs one generation to its end; the scheduler's sink for it."""

    __slots__ = (
        "_call",
        "_capped_by_budget",
        "_end",
        "_group",
        "_max_tokens",
        "_model",
        "_peers",
        "_priority",
        "_role",
        "_state",
        "_vocabulary",
        "live",
        "wrote",
    )

    def __init__(
        self,
        state: RunState,
        role: Role,
        live: LiveGeneration,
        call: partial[Call],
        *,
        group: str,
        priority: float,
        peers: set[LiveGeneration],
    ) -> None:
        self._state, self._role, self.live = state, role, live
        self._call = call  # what is known only when it goes out is yet to be added
        self._group, self._priority, self._peers = group, priority, peers
        self.wrote = False
        self._max_tokens: int | None = None
        self._capped_by_budget = False
        self._end: End | None = None
        self._model = role.model or ""
        self._vocabulary = ""

    def announce(self) -> None:
        """Say that a generation is wanted."""
        state, record = self._state, self.live.record
        if state.listeners:
            state.publish(
                events.GenerationQueued(
                    t=record.queued_at,
                    id=record.id,
                    parents=tuple(record.parents),
                    label=record.label,
                    role=record.role,
                    depth=record.depth,
                    group=self._group,
                )
            )

    def cap(self, asked: int | None, allowed: int | None) -> None:
        """Set the most tokens that it may write: what the strategy asked for, or the less that the budget allows."""
        self._max_tokens, self._capped_by_budget = allowed, allowed != asked

    def begin(self, scope: Scope, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start its task."""
        task = scope.spawn(work)
        self.live.attach(task)
        task.add_done_callback(self._never_ran)

    def _never_ran(self, _: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs none of its code."""
        if not self.live.done:
            self._settle(self.live.stopped_for or "cancelled")

    async def run(self) -> None:
        """Take the call to its end, whatever it is."""
        state, live = self._state, self.live
        if over := state.ledger.over:  # since it was admitted
            self._settle("deadline" if over == "deadline" else "budget")
            return
        state.in_flight.add(live)
        self._peers.add(live)
        try:
            await self._role.lane.perform(
                Job(sink=self, run=state.run_id, group=self._group, priority=self._priority)
            )
        except asyncio.CancelledError:
            # When it is cancelled in closing what has come to its end, it has come to its end.
            self._settle(live.stopped_for or "cancelled" if self._end is None else self._ended(self._end))
            raise
        except Exception as error:  # noqa: BLE001 - kept, and raised to whoever awaits the generation
            self._fail(error)
        else:
            assert self._end is not None
            self._settle(self._ended(self._end))
        finally:
            state.in_flight.discard(live)
            self._peers.discard(live)

    async def refuse(self, error: AnabranchError) -> None:
        """End it with an error, once all that its run has in flight has ended: no finished work is thrown away."""
        for live in tuple(self._peers):
            await live.settled()
        self._fail(error)

    def _ended(self, end: End) -> FinishReason:
        """Why it ended: at a cap that the budget set, it ended for the budget."""
        if end.finish_reason == "length" and self._capped_by_budget:
            self._state.ledger.exhaust("tokens")
            return "budget"
        return end.finish_reason

    # The scheduler's sink

    def ready(self, capabilities: Capabilities) -> Call:
        """What the backend can do is known: the call as it goes out."""
        call = self._call(max_tokens=self._max_tokens, siblings=self._state.siblings[self._group])
        check(call, capabilities, self._role.lane.backend.name)
        self._vocabulary = capabilities.vocabulary
        if not self._model and capabilities.models:
            self._model = capabilities.models[0]
        return call

    def started(self, attempt: int) -> None:
        """The call got its slot."""
        state, record = self._state, self.live.record
        record.started_at = state.now()
        if state.listeners:
            name = self._role.lane.backend.name
            state.publish(
                events.GenerationStarted(
                    t=record.started_at, id=record.id, backend=name, attempt=attempt, model=self._model
                )
            )

    def feed(self, delta: Delta) -> None:
        """A piece arrived."""
        state, live = self._state, self.live
        if delta.end is not None:
            self._end = delta.end
        elif live.stopped_for is not None:
            # Its task is cancelled already, but a stream that never waits would not notice.
            raise asyncio.CancelledError
        elif not self.wrote:
            self.wrote = True
            live.record.first_token_at = state.now()
        live.feed(delta)
        if state.listeners and (delta.text or delta.reasoning):
            state.publish(
                events.GenerationDelta(
                    t=state.now(), id=live.id, text=delta.text, tokens=delta.tokens, reasoning=delta.reasoning
                )
            )
        if state.ledger.charge(delta.tokens) and delta.end is None:
            state.exhaust("tokens")

    def retrying(self, attempt: int, error: BackendError, delay_s: float) -> None:
        """The attempt failed; another one follows."""
        if self._state.listeners:
            self._state.publish(
                events.GenerationRetried(
                    t=self._state.now(),
                    id=self.live.record.id,
                    attempt=attempt,
                    error=str(error),
                    delay_s=delay_s,
                    status_code=error.status_code,
                )
            )

    # Ends

    def _close_record(self, finish_reason: str) -> TokenUsage:
        live, record, state = self.live, self.live.record, self._state
        usage = self._end.usage if self._end is not None else None
        if usage is None:
            usage = TokenUsage(completion=live.tokens)
            record.estimated = self.wrote
        else:
            state.ledger.charge(usage.completion - live.tokens)
        record.finished_at = state.now()
        record.prompt, record.cached, record.completion = usage.prompt, usage.cached, usage.completion
        record.span += usage.completion
        record.model = (self._end.model if self._end is not None else None) or self._model
        record.finish_reason = finish_reason
        state.records.close(record)
        return usage

    def _settle(self, finish_reason: FinishReason) -> None:
        live, record, state, end = self.live, self.live.record, self._state, self._end or End()
        usage, written = self._close_record(finish_reason), live.written()
        result = Generation(
            id=record.id,
            source=live.source,
            text=written.text,
            reasoning=written.reasoning,
            token_ids=written.token_ids,
            vocabulary=self._vocabulary if written.token_ids else "",
            tail=end.tail,
            finish_reason=finish_reason,
            matched=end.matched,
            usage=usage,
            model=record.model,
            logprobs=written.logprobs,
            label_logprobs=end.label_logprobs,
            measured=end.measured,
            spec=end.spec,
            depth=record.depth,
            span=record.span,
        )
        if state.listeners:
            state.publish(_finished(record, result, state.now()))
        if finish_reason == "cancelled":
            state.discard(record.id, "stopped")
        live.settle(result)

    def _fail(self, error: Exception) -> None:
        state, record = self._state, self.live.record
        self._close_record("refused" if isinstance(error, BudgetExhausted) else "error")
        if state.listeners:
            status = error.status_code if isinstance(error, BackendError) else None
            state.publish(
                events.GenerationFailed(t=state.now(), id=record.id, error=str(error), status_code=status)
            )
        state.discard(record.id, "failed")
        self.live.settle(None, error)


def check(call: Call, capabilities: Capabilities, name: str) -> None:
    """Raises UnsupportedCapability where a backend cannot do what a call needs, before the first token."""
    constraint = call.constraint
    if call.branch.segments and not capabilities.prefill:
        raise UnsupportedCapability(f"{name} cannot continue an assistant turn (prefill)")
    if constraint is not None and constraint.kind not in capabilities.constraints:
        known = ", ".join(sorted(capabilities.constraints)) or "none"
        raise UnsupportedCapability(f"{name} has no constrained decoding by {constraint.kind}; it has: {known}")
    if call.top_logprobs > capabilities.top_logprobs:
        raise UnsupportedCapability(
            f"{name} reports {capabilities.top_logprobs} alternatives for a token, not {call.top_logprobs}"
        )
    if call.labels and not capabilities.labels:
        raise UnsupportedCapability(f"{name} cannot score labels in one call; run.score can do without")
    if call.measure is not None and call.measure not in capabilities.measures:
        known = ", ".join(sorted(capabilities.measures)) or "nothing"
        raise UnsupportedCapability(f"{name} measures no {call.measure}; it measures: {known}")
    if capabilities.max_stops is not None and len(call.stop) > capabilities.max_stops:
        raise UnsupportedCapability(f"{name} takes {capabilities.max_stops} stop strings, not {len(call.stop)}")


def _finished(record: GenerationRecord, result: Generation, t: float) -> events.GenerationFinished:
    return events.GenerationFinished(
        t=t,
        id=record.id,
        finish_reason=record.finish_reason,
        prompt=record.prompt,
        cached=record.cached,
        completion=record.completion,
        model=record.model,
        matched=result.matched,
        spec_accept_length=result.spec.accept_length if result.spec is not None else None,
    )
