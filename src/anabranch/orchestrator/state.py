"""RunState: what a run shares with the runs that it delegates to: budget, records, events, what is in flight."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anabranch.orchestrator import events
from anabranch.orchestrator.accounting import GenerationRecord
from anabranch.orchestrator.branch import Branch, GenerationId
from anabranch.orchestrator.budget import Budget, BudgetLedger
from anabranch.orchestrator.errors import Limit
from anabranch.orchestrator.events import Event
from anabranch.orchestrator.generation import LiveGeneration
from anabranch.orchestrator.records import DISCARDED, READ, REJECTED, Records
from anabranch.orchestrator.scheduler import Lane

Listener = Callable[[Event], None]

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""After the deadline a strategy has this long to put its best together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Which model plays a role: the lane to its backend, and its name there (None: the backend's default)."""

    lane: Lane
    model: str | None = None


class RunState:
    """The bookkeeping of one run."""

    def __init__(self, *, roles: dict[str, Role], budget: Budget, listeners: Iterable[Listener] = ()) -> None:
        self.run_id = uuid.uuid4().hex
        self.roles = roles
        self.ledger = BudgetLedger(budget)
        self.records = Records()
        self.listeners = tuple(listeners)
        self.in_flight: set[LiveGeneration] = set()
        """Of all its runs; each run has its own set beside it."""
        self.siblings: Counter[str] = Counter()
        self.minding_deadline = False
        self._clock = asyncio.get_running_loop().time
        self.began = self._clock()

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self.began

    def publish(self, event: Event) -> None:
        """Hand an event to whoever listens. Make it only where `listeners` is not empty."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed at %s and hears no more of run %s", event.type, self.run_id)
                self.listeners = tuple(other for other in self.listeners if other is not listener)

    def new_record(self, branch: Branch, *, label: str, role: str) -> GenerationRecord:
        """Open the record of one more generation."""
        record = GenerationRecord(
            id=GenerationId(len(self.records) + 1),
            parents=branch.parents,
            label=label,
            role=role,
            depth=branch.depth + 1,
            span=branch.span,
            queued_at=self.now(),
        )
        self.records.open(record)
        return record

    def rid(self, number: GenerationId) -> str:
        """The id of a generation's call on the wire: of one width, and no other run's."""
        return f"{self.run_id[:24]}{number:08x}"

    def exhaust(self, limit: Limit) -> None:
        """A limit was reached: stop what is in flight; it keeps what it has so far."""
        self.ledger.exhaust(limit)
        for live in tuple(self.in_flight):
            live.cancel("deadline" if limit == "deadline" else "budget")

    def discard(self, number: int, reason: str) -> None:
        """Count a generation's tokens as wasted."""
        if self.records.mark(number, DISCARDED) and self.listeners:
            completion = self.records[number].completion
            if completion:
                self.publish(
                    events.GenerationDiscarded(t=self.now(), id=number, completion=completion, reason=reason)
                )

    def discard_useless(self, numbers: Iterable[int]) -> None:
        """Count as wasted what nobody read, and what was built on nothing but what is not used."""
        records = self.records
        for number in numbers:
            if not records.marked(number, READ):
                self.discard(number, "never read")
            elif (on := records.parents(number)) and all(records.marked(parent, REJECTED) for parent in on):
                records.mark(number, REJECTED)
                self.discard(number, "built on what is not used")
