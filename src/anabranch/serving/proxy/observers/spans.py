"""RunSpans: makes the spans of one run from its events, at its end. See `tracing`. Imported only with OpenTelemetry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer, set_span_in_context

from anabranch.orchestrator.events import (
    Event,
    FellBack,
    GenerationDelta,
    GenerationDiscarded,
    GenerationFailed,
    GenerationFinished,
    GenerationQueued,
    GenerationRetried,
    GenerationStarted,
    RunFinished,
    RunStarted,
    Warned,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z_-]{0,31}(?: \d{1,4})?|\d{1,4}")
_NUMBER = re.compile(r"(\d{1,4})[.:)]")
_CANCELLED = "CancelledError"


class _Call:
    """A generation: the events of it."""

    __slots__ = ("attempt", "ended", "first_t", "queued", "retries", "started", "wasted")

    def __init__(self, queued: GenerationQueued) -> None:
        self.queued = queued
        self.started: GenerationStarted | None = None
        self.attempt: GenerationStarted | None = None
        """The last one."""
        self.first_t: float | None = None
        self.ended: GenerationFinished | GenerationFailed | None = None
        self.retries: list[GenerationRetried] = []
        self.wasted = 0

    @property
    def completion(self) -> int:
        """What it wrote; a failed one wrote what was discarded of it."""
        return self.ended.completion if isinstance(self.ended, GenerationFinished) else self.wasted


class RunSpans:
    """Hears the events of one run.

    Args:
        model: as the caller named it; may be empty.
        content: whether text that a model or a client wrote may be on spans.
    """

    def __init__(self, tracer: Tracer, context: Context, *, model: str, content: bool) -> None:
        self._tracer, self._context, self._model, self._content = tracer, context, model, content
        self._run: RunStarted | None = None
        self._base_ns = 0
        self._calls: dict[int, _Call] = {}
        self._silent: set[int] = set()
        """Those that are at a server and have not written anything."""
        self._fell_back = ""
        self._warnings: list[Warned] = []

    def hear(self, event: Event) -> None:
        """Take an event."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _run_started(self, event: RunStarted) -> None:
        self._run, self._base_ns = event, round(event.started_at * 1e9)

    def _queued(self, event: GenerationQueued) -> None:
        self._calls[event.id] = _Call(event)

    def _started(self, event: GenerationStarted) -> None:
        call = self._calls[event.id]
        call.started, call.attempt = call.started or event, event
        self._silent.add(event.id)

    def _wrote(self, event: GenerationDelta) -> None:
        if event.id in self._silent:
            self._silent.discard(event.id)
            self._calls[event.id].first_t = event.t

    def _retried(self, event: GenerationRetried) -> None:
        self._calls[event.id].retries.append(event)

    def _ended(self, event: GenerationFinished | GenerationFailed) -> None:
        self._silent.discard(event.id)
        self._calls[event.id].ended = event

    def _discarded(self, event: GenerationDiscarded) -> None:
        self._calls[event.id].wasted = event.completion

    def _fell(self, event: FellBack) -> None:
        self._fell_back = event.reason

    def _warned(self, event: Warned) -> None:
        self._warnings.append(event)

    def _ns(self, t: float) -> int:
        return self._base_ns + round(t * 1e9)

    # Spans

    def _finish(self, event: RunFinished) -> None:
        run = self._run
        if run is None:
            return
        span = self._tracer.start_span(
            f"invoke_agent {run.strategy}",
            context=self._context,
            kind=SpanKind.INTERNAL,
            attributes=self._of_run(run, event),
            start_time=self._ns(0.0),
        )
        if span.is_recording():
            self._make_calls(span, event)
            self._tell(span)
        if event.error is not None and not event.error.startswith(_CANCELLED):
            self._fail(span, None, event.error)
        span.end(self._ns(event.t))

    def _make_calls(self, span: Span, event: RunFinished) -> None:
        """Parents have lower numbers than what is built on them."""
        inside = set_span_in_context(span)
        made: dict[int, SpanContext] = {}
        for number in sorted(self._calls):
            call = self._calls[number]
            if call.started is None:
                attributes: dict[str, Any] = {
                    "anabranch.generation.id": number,
                    "anabranch.generation.role": call.queued.role,
                }
                span.add_event("anabranch.generation_not_started", attributes, self._ns(call.queued.t))
                continue
            links = [Link(made[parent]) for parent in call.queued.parents if parent in made]
            made[number] = self._make_call(inside, call, call.started, links, until=event.t)

    def _make_call(
        self, context: Context, call: _Call, started: GenerationStarted, links: list[Link], *, until: float
    ) -> SpanContext:
        span = self._tracer.start_span(
            f"chat {started.model}".rstrip(),
            context=context,
            kind=SpanKind.CLIENT,
            attributes=self._of_call(call, started),
            links=links,
            start_time=self._ns(started.t),
        )
        for retry in call.retries:
            attributes: dict[str, Any] = {"attempt": retry.attempt, "delay_s": retry.delay_s}
            if retry.status_code is not None:
                attributes["http.response.status_code"] = retry.status_code
            span.add_event("anabranch.retry", attributes, self._ns(retry.t))
        if isinstance(call.ended, GenerationFailed):
            self._fail(span, call.ended.status_code, call.ended.error)
        span.end(self._ns(call.ended.t if call.ended is not None else until))
        return span.get_span_context()

    def _tell(self, span: Span) -> None:
        """What went wrong without stopping the run."""
        for warning in self._warnings:
            attributes: dict[str, Any] = {"message": warning.message} if self._content else {}
            span.add_event("anabranch.warning", attributes, self._ns(warning.t))

    def _fail(self, span: Span, status_code: int | None, message: str) -> None:
        span.set_attribute("error.type", "_OTHER" if status_code is None else str(status_code))
        span.set_status(StatusCode.ERROR, message if self._content else None)

    # Attributes

    def _of_run(self, run: RunStarted, event: RunFinished) -> dict[str, Any]:
        summary = event.summary
        usage: Mapping[str, Any] = summary.get("usage") or self._counted()
        cancelled = event.error is not None and event.error.startswith(_CANCELLED)
        return _there(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": run.strategy,
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": summary.get("model"),
                "gen_ai.response.finish_reasons": ["cancelled" if cancelled else event.finish_reason],
                "gen_ai.usage.input_tokens": usage["prompt"],
                "gen_ai.usage.cache_read.input_tokens": usage["cached"],
                "gen_ai.usage.output_tokens": usage["work"],
                "anabranch.run_id": run.run_id,
                "anabranch.work": usage["work"],
                "anabranch.span": usage.get("span"),
                "anabranch.wasted": usage["wasted"],
                "anabranch.branches": usage["branches"],
                "anabranch.active": summary.get("active"),
                "anabranch.fell_back": self._fell_back,
                "anabranch.first_token_s": (summary.get("timing") or {}).get("first_token_s"),
                **_place(run.backend),
            }
        )

    def _counted(self) -> dict[str, int]:
        """What a run used that has no summary, since it failed or was cancelled."""
        calls = self._calls.values()
        ended = [call.ended for call in calls if isinstance(call.ended, GenerationFinished)]
        return {
            "prompt": sum(each.prompt for each in ended),
            "cached": sum(min(each.cached, each.prompt) for each in ended),
            "work": sum(call.completion for call in calls),
            "wasted": sum(call.wasted for call in calls),
            "branches": sum(call.started is not None for call in calls),
        }

    def _of_call(self, call: _Call, started: GenerationStarted) -> dict[str, Any]:
        queued, last, ended = call.queued, call.attempt or started, call.ended
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": started.model,
            "gen_ai.usage.output_tokens": call.completion,
            "anabranch.generation.id": queued.id,
            "anabranch.generation.parents": list(queued.parents),
            "anabranch.generation.role": queued.role,
            "anabranch.generation.label": queued.label if self._content else plain(queued.label),
            "anabranch.generation.depth": queued.depth,
            "anabranch.generation.attempts": last.attempt,
            "anabranch.generation.queued_s": round(started.t - queued.t, 6),
            "anabranch.wasted": call.wasted,
            **_place(started.backend),
        }
        if call.first_t is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = round(call.first_t - last.t, 6)
        if isinstance(ended, GenerationFinished):
            attributes |= {
                "gen_ai.response.model": ended.model,
                "gen_ai.response.finish_reasons": [ended.finish_reason],
                "gen_ai.usage.input_tokens": ended.prompt,
                "gen_ai.usage.cache_read.input_tokens": min(ended.cached, ended.prompt),
            }
        return _there(attributes)


_HANDLERS: dict[type, Callable[[RunSpans, Any], None]] = {
    GenerationDelta: RunSpans._wrote,
    RunStarted: RunSpans._run_started,
    GenerationQueued: RunSpans._queued,
    GenerationStarted: RunSpans._started,
    GenerationRetried: RunSpans._retried,
    GenerationFinished: RunSpans._ended,
    GenerationFailed: RunSpans._ended,
    GenerationDiscarded: RunSpans._discarded,
    FellBack: RunSpans._fell,
    Warned: RunSpans._warned,
    RunFinished: RunSpans._finish,
}


def plain(label: str) -> str:
    """What of a label is surely no text of a model's: a name (`outline`, `sample 3`), or a number in front (`3. …`)."""
    if _NAME.fullmatch(label):
        return label
    number = _NUMBER.match(label)
    return number[1] if number else ""


def _place(backend: str) -> dict[str, Any]:
    """Which server, by the name of its backend: a URL, as a rule."""
    try:
        parts = urlsplit(backend)
        address, port = parts.hostname, parts.port
    except ValueError:
        return {"gen_ai.provider.name": "unknown"}
    provider = "openai" if parts.scheme in ("http", "https") else parts.scheme or backend
    place = {"gen_ai.provider.name": provider, "server.address": address, "server.port": port}
    return _there(place)


def _there(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}
