"""Timeline: what the events of a run say about its branches, so far.

The live display, the printed tree and the picture are all drawn from it. It is pure: events in, state out; it knows
no clock and no terminal. It copes with a stream that ends in the middle, and with events for branches that it never
saw begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from anabranch.orchestrator import events as ev

State = Literal["waiting", "running", "retrying", "done", "cut", "stopped", "failed"]
"""`cut` ended at its cap on tokens; `stopped` was ended by us. The others say what they mean."""

ENDED: frozenset[State] = frozenset({"done", "cut", "stopped", "failed"})
_STATE_OF_FINISH: Mapping[str, State] = {
    "length": "cut",
    "cancelled": "stopped",
    "budget": "stopped",
    "deadline": "stopped",
}


@dataclass(slots=True, kw_only=True)
class BranchView:
    """A generation, as far as the events tell. Times are seconds since the run began.

    Attributes:
        tokens: completion tokens; while it runs, as counted from its pieces.
        wasted: the part of them that is not used.
        note: why it failed, was stopped or discarded; empty otherwise.
    """

    id: int
    parents: tuple[int, ...] = ()
    label: str = ""
    role: str = "target"
    queued_at: float = 0.0
    started_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    state: State = "waiting"
    attempts: int = 1
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    wasted: int = 0
    finish_reason: str = ""
    note: str = ""
    backend: str = ""
    model: str = ""
    pieces: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What it wrote, without reasoning."""
        return "".join(self.pieces)

    @property
    def name(self) -> str:
        """Its label, or else its number."""
        return self.label or f"branch {self.id}"

    @property
    def ended(self) -> bool:
        """Whether it is over, in whatever way."""
        return self.state in ENDED

    def end(self, now: float) -> float:
        """When it ended; `now` while it goes on."""
        return now if self.ended_at is None else self.ended_at

    def rate(self, now: float) -> float | None:
        """Tokens per second of writing; None where nothing can be said."""
        begin = self.first_token_at if len(self.pieces) + len(self.reasoning) > 1 else self.started_at
        if begin is None or not self.tokens:
            return None
        seconds = self.end(now) - begin
        return self.tokens / seconds if seconds > 0 else None


@dataclass(slots=True, kw_only=True)
class Timeline:
    """The state of a run, built by feeding it events.

    Attributes:
        now: time of the last event, in seconds since the run began.
        answer: pieces of the answer with their times.
        summary: the run's figures, once it is over.
    """

    now: float = 0.0
    run_id: str = ""
    strategy: str = ""
    question: str = ""
    backend: str = ""
    started_at: float | None = None
    branches: dict[int, BranchView] = field(default_factory=dict)
    nodes: dict[str, ev.NodeState] = field(default_factory=dict)
    answer: list[tuple[float, str]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fell_back: str | None = None
    finish_reason: str = ""
    error: str | None = None
    finished: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[ev.Event]) -> Self:
        """The timeline of these events."""
        timeline = cls()
        for event in events:
            timeline.feed(event)
        return timeline

    @property
    def answer_text(self) -> str:
        """The answer so far."""
        return "".join(text for _, text in self.answer)

    @property
    def tokens(self) -> int:
        """Completion tokens of all branches so far."""
        return sum(branch.tokens for branch in self.branches.values())

    @property
    def wasted(self) -> int:
        """Completion tokens that are not used, so far."""
        return sum(branch.wasted for branch in self.branches.values())

    def states(self) -> Counter[State]:
        """How many branches are in each state."""
        return Counter(branch.state for branch in self.branches.values())

    def feed(self, event: ev.Event) -> None:
        """Take in one event."""
        self.now = max(self.now, event.t)
        match event:
            case ev.GenerationDelta():
                self._delta(event)
            case ev.AnswerDelta():
                self._answer(event)
            case (
                ev.GenerationQueued()
                | ev.GenerationStarted()
                | ev.GenerationRetried()
                | ev.GenerationFinished()
                | ev.GenerationFailed()
                | ev.GenerationDiscarded()
            ):
                self._generation(event)
            case ev.NodeChanged():
                self.nodes[event.node] = event.state
            case ev.Warned():
                self.warnings.append(event.message)
            case ev.FellBack():
                self.fell_back = event.reason
            case ev.RunStarted():
                self._run_started(event)
            case ev.RunFinished():
                self._run_finished(event)

    def _run_started(self, event: ev.RunStarted) -> None:
        self.run_id, self.strategy, self.question = event.run_id, event.strategy, event.question
        self.backend, self.started_at = event.backend, event.started_at

    def _run_finished(self, event: ev.RunFinished) -> None:
        self.finished, self.finish_reason = True, event.finish_reason
        self.summary, self.error = event.summary, event.error

    def _answer(self, event: ev.AnswerDelta) -> None:
        if event.text:
            self.answer.append((event.t, event.text))
        if event.reasoning:
            self.reasoning.append(event.reasoning)

    def _branch(self, id: int, t: float) -> BranchView:
        branch = self.branches.get(id)
        if branch is None:
            branch = self.branches[id] = BranchView(id=id, queued_at=t)
        return branch

    def _delta(self, event: ev.GenerationDelta) -> None:
        branch = self._branch(event.id, event.t)
        branch.tokens += event.tokens
        if branch.first_token_at is None and (event.tokens or event.text or event.reasoning):
            branch.first_token_at = event.t
        if event.text:
            branch.pieces.append(event.text)
        if event.reasoning:
            branch.reasoning.append(event.reasoning)

    def _generation(
        self,
        event: ev.GenerationQueued
        | ev.GenerationStarted
        | ev.GenerationRetried
        | ev.GenerationFinished
        | ev.GenerationFailed
        | ev.GenerationDiscarded,
    ) -> None:
        branch = self._branch(event.id, event.t)
        match event:
            case ev.GenerationQueued():
                branch.parents, branch.label, branch.role = event.parents, event.label, event.role
                branch.queued_at = event.t
            case ev.GenerationStarted():
                branch.state, branch.started_at = "running", event.t
                branch.attempts, branch.backend = event.attempt, event.backend
            case ev.GenerationRetried():
                branch.state, branch.attempts, branch.note = "retrying", event.attempt + 1, event.error
            case ev.GenerationFinished():
                _finish(branch, event)
            case ev.GenerationFailed():
                branch.state, branch.ended_at, branch.note = "failed", event.t, event.error
            case ev.GenerationDiscarded():
                branch.wasted = max(branch.wasted, event.completion)
                branch.tokens = max(branch.tokens, branch.wasted)
                branch.note = branch.note if branch.state == "failed" else event.reason or branch.note


def _finish(branch: BranchView, event: ev.GenerationFinished) -> None:
    branch.state = _STATE_OF_FINISH.get(event.finish_reason, "done")
    branch.ended_at, branch.finish_reason = event.t, event.finish_reason
    branch.prompt, branch.cached, branch.tokens = event.prompt, event.cached, event.completion
    branch.model = event.model
    branch.note = event.finish_reason if branch.state == "stopped" else ""
