"""OpenTelemetry spans of requests and runs, as the GenAI conventions name them.

    POST /v1/chat/completions         SERVER    a request; goes on with the trace of its `traceparent`
      invoke_agent skeleton           INTERNAL  a run, one for each of the request's `n` choices
        chat M                        CLIENT    the outline
        chat M                        CLIENT    a point; linked to the generations that its prompt stands on

Without the proxy, a run's spans are children of the span that is current when its listener is made:

    tracing = Tracing()
    answer = await orch.ask("…", strategy="skeleton", listeners=[tracing.listener()])
    await tracing.aclose()

Where the spans go to is said by the standard variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, … A tracer provider that the process has set up already is used as it is.
Importing this module without the extra `otel` raises MissingExtra.

A run's spans are made at its end, from its events, whose times they carry: what is known only then, such as wasted
tokens, stands on them too, and until then tracing costs nearly nothing.

Invariant: no text that a model or a client wrote is in a span, unless `content` says so. Labels and messages of
errors and warnings may quote such text.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from anabranch.orchestrator.errors import MissingExtra
from anabranch.serving.proxy.observers.routes import OTHER, route_of
from anabranch.serving.proxy.requests import RequestInfo, RunListener

try:
    from opentelemetry.context import Context, get_current
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from anabranch.serving.proxy.observers.exporting import own_provider, provider_of_process
    from anabranch.serving.proxy.observers.spans import RunSpans
except ImportError as error:
    raise MissingExtra("tracing", "otel") from error

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
FLUSH_S = 5.0
"""Seconds that the last spans get to reach the collector."""
LONGEST = 256
"""Characters that are kept of what a client sent."""

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans of what the proxy does. An observer; belongs to one event loop.

    Args:
        provider: None for the one that the process has set up, else one that exports as the `OTEL_*` variables say.
        content: put labels and messages on spans in full; None for what
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says.

    Raises:
        InvalidParameter: a variable asks for an exporter that there is not.
    """

    def __init__(self, provider: TracerProvider | None = None, *, content: bool | None = None) -> None:
        from anabranch import __version__

        self._own: SdkProvider | None = None
        used = provider or provider_of_process()
        if used is None:
            used = self._own = own_provider()
        self._tracer = used.get_tracer("anabranch", __version__)
        self._content = _captures_content() if content is None else content
        self._requests: dict[int, Span] = {}

    def request_began(self, request: RequestInfo) -> None:
        """Open its span. Probes, scrapes and pages have none."""
        if not request.path.startswith("/v1/"):
            return
        came_with = {"traceparent": request.traceparent} if request.traceparent else {}
        self._requests[id(request)] = self._tracer.start_span(
            _name(request),
            context=_propagator.extract(came_with, context=Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": request.method, "url.path": request.path[:LONGEST]},
            start_time=round(request.started_at * 1e9),
        )

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """The spans of a run, below its request's."""
        span = self._requests.get(id(request))
        if span is None or not span.is_recording():
            return None
        return self.listener(context=set_span_in_context(span), model=request.model)

    def request_ended(self, request: RequestInfo) -> None:
        """Close its span."""
        span = self._requests.pop(id(request), None)
        if span is None:
            return
        span.update_name(_name(request))
        span.set_attributes(_attributes(request))
        if request.status >= 500 or (request.error_code and request.status < 400):
            span.set_attribute("error.type", request.error_code[:LONGEST] or str(request.status))
            span.set_status(StatusCode.ERROR)
        span.end(round(request.started_at * 1e9) + round((request.wall_s or 0.0) * 1e9))

    def listener(self, *, context: Context | None = None, model: str = "") -> RunListener:
        """What is to hear the events of one run, and of no other.

        Args:
            context: holds the span above the run's; None for what is current now.
            model: as the caller named it.
        """
        above = get_current() if context is None else context
        return RunSpans(self._tracer, above, model=model[:LONGEST], content=self._content).hear

    async def aclose(self) -> None:
        """Send what is left, within `FLUSH_S` seconds. A provider that was given is left as it is."""
        if self._own is not None:
            # A thread of its own: the loop's executor would wait at exit for a collector that does not answer.
            closing = threading.Thread(target=self._own.shutdown, name="anabranch-spans", daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, FLUSH_S)


def _name(request: RequestInfo) -> str:
    route = route_of(request)
    return request.method if route == OTHER else f"{request.method} {route}"


def _attributes(request: RequestInfo) -> dict[str, Any]:
    attributes = {
        "http.response.status_code": request.status,
        "http.route": route_of(request),
        "gen_ai.request.model": request.model[:LONGEST],
        "anabranch.request_id": request.request_id,
        "anabranch.strategy": request.strategy,
        "anabranch.stream": request.stream,
    }
    return {name: value for name, value in attributes.items() if value != ""}


def _captures_content() -> bool:
    wish = os.environ.get(CONTENT, "").strip().lower()
    return wish in ("true", "1", "span_only", "span_and_event")
