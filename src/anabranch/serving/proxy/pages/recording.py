"""Recording: one run, as far as it has come, for whoever looks at it later or meanwhile.

What a run wrote is kept in slices of time rather than piece by piece. A slice is a share of the time that the run has
taken so far: a long run has few more of them than a short one, and a picture of it looks the same. Only the first
piece of each text is kept as it came.

Invariant: a run takes bounded memory, whatever it writes; what has been read of it does not change any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from anabranch.orchestrator.events import (
    AnswerDelta,
    Event,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    RunFinished,
    RunStarted,
    Warned,
)
from anabranch.serving.proxy.requests import RequestInfo

MOST_TEXT = 2**20
"""Characters that are kept of all that a run writes: its branches and its answer."""
MOST_EVENTS = 20_000
MOST_WORDS = 16_384
"""Characters that are kept of a question, a label, an error."""
SLICES = {GenerationDelta: 0.1, AnswerDelta: 0.02}
"""A slice, as a share of the time since the run began. The answer's times are drawn, those of a branch are not."""
LEAST_SLICE_S = 0.05
_READ_ANEW_S = 0.4
_SLOWER_AFTER = 2_000
_ANSWER = 0
"""Generations are numbered from 1."""


class _Slice:
    """An event that stands in a recording already, and its further text, which is joined in the end only."""

    __slots__ = ("_event", "_reasoning", "_text", "_tokens", "until")

    def __init__(self, event: GenerationDelta | AnswerDelta) -> None:
        self._event = event
        self._text, self._reasoning = [event.text], [event.reasoning]
        self._tokens = 0
        self.until = event.t + max(LEAST_SLICE_S, SLICES[type(event)] * event.t)

    def add(self, event: GenerationDelta | AnswerDelta) -> None:
        self._text.append(event.text)
        if event.reasoning:
            self._reasoning.append(event.reasoning)
        if type(event) is GenerationDelta:
            self._tokens += event.tokens

    def seal(self) -> None:
        event = self._event
        event.text, event.reasoning = "".join(self._text), "".join(self._reasoning)
        if isinstance(event, GenerationDelta):
            event.tokens += self._tokens


class Recording:
    """One run, as far as it has come.

    Attributes:
        events: in the order of their times; read them with `read`.
        tokens: completion tokens: while it runs as counted from its pieces, then as the servers said.
        finished: its last event; None while it runs.
        cut: something of it was not kept, for there was too much.
    """

    __slots__ = (
        "_began",
        "_began_at",
        "_ended",
        "_open",
        "_room",
        "_sealed",
        "_sealed_at",
        "branches",
        "cut",
        "events",
        "finished",
        "request",
        "started",
        "tokens",
    )

    def __init__(
        self,
        request: RequestInfo,
        *,
        began: Callable[[Recording], None],
        ended: Callable[[Recording], None],
    ) -> None:
        self.request = request
        self.events: list[Event] = []
        self.branches = self.tokens = 0
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.cut = False
        self._began, self._ended = began, ended
        self._began_at = perf_counter()
        self._room = MOST_TEXT
        self._sealed, self._sealed_at = 0, -math.inf
        self._open: dict[int, _Slice | None] = {}
        """The slice of each text that still grows; None for a text whose next piece begins one."""

    @property
    def run_id(self) -> str:
        """The run's own id; empty before it has begun."""
        return self.started.run_id if self.started is not None else ""

    @property
    def wall_s(self) -> float:
        """Seconds that it took; so far, while it runs."""
        return self.finished.t if self.finished is not None else perf_counter() - self._began_at

    @property
    def state(self) -> str:
        """`running`, `done`, `failed`, or `stopped` where its client went away."""
        if self.finished is None:
            return "running"
        if self.finished.error is None:
            return "done"
        return "stopped" if self.finished.error.startswith("CancelledError") else "failed"

    def hear(self, event: Event) -> None:
        """Take an event."""
        if type(event) is GenerationDelta:
            self.tokens += event.tokens
            self._write(event.id, event)
        elif type(event) is AnswerDelta:
            self._write(_ANSWER, event)
        else:
            self._happen(event)

    def read(self, after: int = 0) -> list[Event]:
        """The events but for the first `after`. What has been read does not change any more.

        Of a run that goes on the latest are missing, if it was read a moment ago: each reading ends all slices, and a
        reader that comes often must not fill the recording with them.
        """
        now = self.wall_s
        if self.finished is not None or now - self._sealed_at >= self._patience_s:
            self._seal()
            self._sealed, self._sealed_at = len(self.events), now
        return self.events[after : self._sealed]

    @property
    def _patience_s(self) -> float:
        return _READ_ANEW_S * 2.0 ** (len(self.events) // _SLOWER_AFTER)

    def break_off(self) -> None:
        """Its request is over, and so is the run, although it did not say so."""
        if self.started is not None and self.finished is None:
            self._finish(RunFinished(t=self.wall_s, finish_reason="error", summary={}, error="broken off"))

    def summary(self, words: int = 200) -> dict[str, Any]:
        """What it was and how it went, as a JSON object; the question cut to so many characters."""
        started, finished = self.started, self.finished
        question = started.question if started is not None else ""
        return {
            "run_id": self.run_id,
            "request_id": self.request.request_id,
            "strategy": started.strategy if started is not None else "",
            "model": self.request.model,
            "question": _clip(question, words),
            "state": self.state,
            "finish_reason": finished.finish_reason if finished is not None else None,
            "started_at": started.started_at if started is not None else None,
            "wall_s": round(self.wall_s, 4),
            "branches": self.branches,
            "tokens": self.tokens,
            "cut": self.cut,
        }

    def _happen(self, event: Event) -> None:
        event = _bounded(event)
        if isinstance(event, RunFinished):
            self._finish(event)
            return
        if isinstance(event, GenerationStarted):
            self.branches += event.attempt == 1
        elif isinstance(event, GenerationFinished):
            if (growing := self._open.pop(event.id, None)) is not None:
                growing.seal()
        elif isinstance(event, RunStarted):
            self.started = event
            self._began(self)
        self._add(event)

    def _finish(self, event: RunFinished) -> None:
        usage = event.summary.get("usage") or {}
        self.branches = usage.get("branches", self.branches)
        self.tokens = usage.get("work", self.tokens)
        self.finished = event
        self.events.append(event)
        self._seal()
        self._open.clear()
        self._ended(self)

    def _write(self, key: int, event: GenerationDelta | AnswerDelta) -> None:
        """Add to a text: to its last slice, where that still grows."""
        size = len(event.text) + len(event.reasoning)
        if size > self._room:
            self._cut(f"the history keeps no more text of this run: it has more than {MOST_TEXT} characters")
            event = replace(event, text="", reasoning="")
        else:
            self._room -= size
        growing = self._open.get(key)
        if growing is None or event.t >= growing.until:
            self._begin(key, event, growing)
        else:
            growing.add(event)

    def _begin(self, key: int, event: GenerationDelta | AnswerDelta, before: _Slice | None) -> None:
        """A further slice. A first piece stays alone, since the time of the first token is worth knowing."""
        if before is not None:
            before.seal()
        if key in self._open:
            event = replace(event)
            self._open[key] = _Slice(event)
        else:
            self._open[key] = None
        self._add(event)

    def _seal(self) -> None:
        for key, growing in self._open.items():
            if growing is not None:
                growing.seal()
                self._open[key] = None

    def _add(self, event: Event) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self._cut(f"the history keeps no more of this run: it has more than {MOST_EVENTS} events", event.t)

    def _cut(self, reason: str, t: float | None = None) -> None:
        if not self.cut:
            self.cut = True
            self._room = 0
            self.events.append(Warned(t=self.wall_s if t is None else t, message=reason))


def _bounded(event: Event) -> Event:
    """The event, none of its words too long."""
    values = ((name, getattr(event, name)) for name in event.__slots__)
    long: dict[str, Any] = {
        name: _clip(value, MOST_WORDS)
        for name, value in values
        if isinstance(value, str) and len(value) > MOST_WORDS
    }
    return replace(event, **long) if long else event


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
