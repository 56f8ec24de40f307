"""CountedRun: what the events of one run add to the metrics."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, get_args

from anabranch.orchestrator.backend import FinishReason
from anabranch.orchestrator.events import (
    AnswerDelta,
    Event,
    FellBack,
    GenerationDiscarded,
    GenerationFailed,
    GenerationFinished,
    GenerationQueued,
    GenerationRetried,
    GenerationStarted,
    RunFinished,
    RunStarted,
)
from anabranch.serving.proxy.observers.routes import OTHER
from anabranch.serving.proxy.observers.series import Series

_OUTCOMES = frozenset(get_args(FinishReason))
_STOPPED = ("cancelled", "budget", "deadline")


class Watch:
    """A request under way: when it came, whether it had a run, whether a piece of an answer was there."""

    __slots__ = ("answered", "began", "counts", "ran")

    def __init__(self, *, counts: bool) -> None:
        self.began = perf_counter()
        self.counts = counts
        self.ran = self.answered = False


class _Call:
    """A generation."""

    __slots__ = ("at_server", "failed", "model", "started")

    def __init__(self) -> None:
        self.started = self.at_server = self.failed = False
        self.model = OTHER


class CountedRun:
    """Hears one run's events.

    Args:
        model: gives the label for a model's name.
    """

    __slots__ = ("_calls", "_idle_s", "_idle_since", "_model", "_open", "_series", "_strategy", "_watch")

    def __init__(self, series: Series, watch: Watch, strategy: str, model: Callable[[str], str]) -> None:
        self._series, self._watch, self._strategy, self._model = series, watch, strategy, model
        self._calls: dict[int, _Call] = {}
        self._open = 0
        self._idle_s, self._idle_since = 0.0, perf_counter()

    def hear(self, event: Event) -> None:
        """Take an event; most are deltas, which are nobody's."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _run_started(self, _: RunStarted) -> None:
        self._idle_since = perf_counter()

    def _answered(self, event: AnswerDelta) -> None:
        watch = self._watch
        if not watch.answered and (event.text or event.reasoning):
            watch.answered = True
            self._series.ttft(self._strategy).observe(perf_counter() - watch.began)

    def _queued(self, event: GenerationQueued) -> None:
        self._calls[event.id] = _Call()
        if not self._open:
            self._idle_s += perf_counter() - self._idle_since
        self._open += 1

    def _started(self, event: GenerationStarted) -> None:
        call = self._calls[event.id]
        call.started = call.at_server = True
        call.model = self._model(event.model)
        self._series.upstream_inflight.inc()

    def _retried(self, event: GenerationRetried) -> None:
        self._returned(self._calls[event.id], _status(event.status_code))

    def _finished(self, event: GenerationFinished) -> None:
        call, reason, tokens = self._calls[event.id], event.finish_reason, self._series.tokens
        call.model = model = self._model(event.model)
        if event.prompt:
            tokens("prompt", model).inc(event.prompt)
        if event.cached:
            tokens("cached", model).inc(min(event.cached, event.prompt))
        if event.completion:
            tokens("completion", model).inc(event.completion)
        self._ended(call, reason if reason in _OUTCOMES else OTHER)
        self._returned(call, "cancelled" if reason in _STOPPED else "200")

    def _failed(self, event: GenerationFailed) -> None:
        call = self._calls[event.id]
        call.failed = True
        self._ended(call, "failed")
        self._returned(call, _status(event.status_code))

    def _discarded(self, event: GenerationDiscarded) -> None:
        call, tokens = self._calls[event.id], self._series.tokens
        tokens("wasted", call.model).inc(event.completion)
        if call.failed:  # the event of its failure did not say what it had written
            tokens("completion", call.model).inc(event.completion)

    def _fell_back(self, _: FellBack) -> None:
        self._series.fallbacks(self._strategy).inc()

    def _run_finished(self, event: RunFinished) -> None:
        if not self._open:
            self._idle_s += perf_counter() - self._idle_since
        self._series.overhead(self._strategy).observe(self._idle_s)
        if event.finish_reason in ("deadline", "budget"):
            self._series.cancelled(event.finish_reason).inc()
        for call in self._calls.values():  # those that were given up since their clean-up took too long
            self._returned(call, "cancelled")

    def _ended(self, call: _Call, outcome: str) -> None:
        self._series.branches(self._strategy, outcome if call.started else "unstarted").inc()
        self._open -= 1
        if not self._open:
            self._idle_since = perf_counter()

    def _returned(self, call: _Call, status: str) -> None:
        """The call is not at the server any more."""
        if call.at_server:
            call.at_server = False
            self._series.upstream_inflight.dec()
            self._series.upstream(status).inc()


_HANDLERS: dict[type, Callable[[CountedRun, Any], None]] = {
    RunStarted: CountedRun._run_started,
    AnswerDelta: CountedRun._answered,
    GenerationQueued: CountedRun._queued,
    GenerationStarted: CountedRun._started,
    GenerationRetried: CountedRun._retried,
    GenerationFinished: CountedRun._finished,
    GenerationFailed: CountedRun._failed,
    GenerationDiscarded: CountedRun._discarded,
    FellBack: CountedRun._fell_back,
    RunFinished: CountedRun._run_finished,
}


def _status(code: int | None) -> str:
    return "error" if code is None else str(code)
