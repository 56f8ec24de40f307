"""Spans of requests and runs: their tree, their times, what is on them, and what is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from anabranch import Budget, Orchestrator
from anabranch.orchestrator.errors import BackendOverloaded, InvalidParameter, RequestRejected
from anabranch.serving.proxy.observers.spans import plain
from anabranch.serving.proxy.observers.tracing import CONTENT, Tracing
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from observed import QUESTION, passed_through, serve, skeleton
from proxy_server import serving
from upstream import Upstream

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
POINTS = [
    Reply.of(" one two", tokens=20, delay_s=2),
    Reply.of(" three", tokens=10, delay_s=3),
    Reply.of(" four", tokens=5, delay_s=1),
]
TREE = """\
POST /v1/chat/completions
  invoke_agent skeleton
    chat scripted
    chat scripted
    chat scripted
    chat scripted"""


class Collected:
    """The spans that were exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """In the order in which they began; those that began together, in that of their generations."""
        spans = self._exporter.get_finished_spans()
        return sorted(
            spans, key=lambda span: (span.start_time or 0, of(span).get("anabranch.generation.id", 0))
        )

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self) -> str:
        """Names, indented by depth."""
        return "\n".join(self._below(None, 0))

    def _below(self, parent: int | None, depth: int) -> list[str]:
        lines = []
        known = {span.context.span_id for span in self.spans}
        for span in self.spans:
            above = span.parent.span_id if span.parent is not None else None
            if above == parent or (parent is None and above not in known):
                lines += ["  " * depth + span.name, *self._below(span.context.span_id, depth + 1)]
        return lines


@pytest.fixture
def collected() -> Collected:
    """A provider whose spans stay in memory."""
    return Collected()


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_the_tree_of_a_skeleton(collected: Collected) -> None:
    """Request, run, and a call for each generation, one below the other."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    assert collected.tree() == TREE
    kinds = [span.kind for span in collected.spans]
    assert kinds == [SpanKind.SERVER, SpanKind.INTERNAL, *[SpanKind.CLIENT] * 4]
    assert {span.status.status_code for span in collected.spans} == {StatusCode.UNSET}


def test_what_is_on_a_call(collected: Collected) -> None:
    """A call has the attributes of the GenAI conventions, and its place in the run."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    outline, first, *_ = collected.named("chat scripted")
    assert of(outline) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "server.address": "models.example",
        "server.port": 30000,
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 1.0,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.output_tokens": 30,
        "anabranch.generation.id": 1,
        "anabranch.generation.parents": (),
        "anabranch.generation.role": "target",
        "anabranch.generation.label": "outline",
        "anabranch.generation.depth": 1,
        "anabranch.generation.attempts": 1,
        "anabranch.generation.queued_s": 0.0,
        "anabranch.wasted": 0,
    }
    assert of(first)["anabranch.generation.parents"] == (1,)
    assert of(first)["anabranch.generation.depth"] == 2


def test_what_is_on_a_run(collected: Collected) -> None:
    """A run has the figures of its answer."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    (run,) = collected.named("invoke_agent skeleton")
    attributes = of(run)
    assert len(attributes.pop("anabranch.run_id")) == 32
    assert attributes.pop("anabranch.first_token_s") > 0
    assert attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "skeleton",
        "gen_ai.provider.name": "sglang",
        "server.address": "models.example",
        "server.port": 30000,
        "gen_ai.request.model": "M@skeleton",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 130,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.output_tokens": 65,
        "anabranch.work": 65,
        "anabranch.span": 50,
        "anabranch.wasted": 0,
        "anabranch.branches": 4,
        "anabranch.active": True,
    }


def test_the_points_are_linked_to_the_outline(collected: Collected) -> None:
    """Links are the edges of the computation graph."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    outline, *points = collected.named("chat scripted")
    assert outline.links == ()
    assert [[link.context.span_id for link in point.links] for point in points] == [
        [outline.context.span_id]
    ] * 3


def test_times_are_those_of_the_events(collected: Collected) -> None:
    """A span begins as its call went to the server and ends as that ended, to the microsecond."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    (run,) = collected.named("invoke_agent skeleton")
    calls = collected.named("chat scripted")
    assert run.start_time is not None
    starts = [round(((call.start_time or 0) - run.start_time) / 1e9, 6) for call in calls]
    assert starts == [0, 1, 1, 1]
    assert [round(seconds(call), 6) for call in calls] == [1, 2, 3, 1]
    assert round(seconds(run), 6) == 4
    (request,) = collected.named("POST /v1/chat/completions")
    assert round(seconds(request), 6) == 4


def test_a_trace_is_continued(collected: Collected) -> None:
    """A request with a `traceparent` is a child of the span that it names; all below is in the same trace."""
    header = f"00-{TRACE}-{PARENT}-01"
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton", traceparent=header)
    assert {f"{span.context.trace_id:032x}" for span in collected.spans} == {TRACE}
    parent = collected.spans[0].parent
    assert parent is not None
    assert f"{parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01"])
def test_a_bad_traceparent_begins_a_trace(collected: Collected, header: str) -> None:
    """What is no valid header is as none."""
    passed_through([Tracing(collected.provider)], traceparent=header)
    (span,) = collected.spans
    assert span.parent is None


def test_what_is_not_sampled_costs_no_listener() -> None:
    """Where a request is not sampled its runs are not listened to."""
    tracing = Tracing(TracerProvider(sampler=ALWAYS_OFF))
    heard: list[object] = []

    class Asking:
        def request_began(self, request: Any) -> None:
            tracing.request_began(request)

        def run_opened(self, request: Any) -> None:
            heard.append(tracing.run_opened(request))

        def request_ended(self, request: Any) -> None:
            tracing.request_ended(request)

    serve([Asking()], ScriptedBackend([Reply.of("yes")]))
    assert heard == [None]


def test_each_choice_is_a_run(collected: Collected) -> None:
    """n = 2 is two runs below one request, and their calls do not mix."""
    serve([Tracing(collected.provider)], ScriptedBackend(lambda _: Reply.of("a b", delay_s=1)), n=2)
    assert collected.tree() == (
        "POST /v1/chat/completions\n"
        "  invoke_agent sequential\n    chat scripted\n"
        "  invoke_agent sequential\n    chat scripted"
    )


# What goes wrong


def test_a_failure(collected: Collected) -> None:
    """A call that fails, and the run that it fails, have the status of an error; a 4xx is none of the server's."""
    backend = ScriptedBackend([Reply.failing(RequestRejected(f"cannot read {QUESTION}"), after="a b")])
    serve([Tracing(collected.provider)], backend)
    request, run, call = collected.spans
    assert request.status.status_code is StatusCode.UNSET
    assert of(request)["http.response.status_code"] == 400
    assert run.status.status_code is call.status.status_code is StatusCode.ERROR
    assert of(call)["error.type"] == "400"
    assert of(call)["anabranch.wasted"] == of(call)["gen_ai.usage.output_tokens"] == 2
    assert of(run)["anabranch.wasted"] == of(run)["anabranch.work"] == 2
    assert run.status.description is call.status.description is None


def test_retries_are_events_of_their_call(collected: Collected) -> None:
    """A call that was tried again is one span, with an event for each attempt that failed."""
    busy = Reply.failing(BackendOverloaded("later", status_code=429), delay_s=1)
    replies = [busy, Reply.of("yes", delay_s=2)]
    serve([Tracing(collected.provider)], ScriptedBackend(replies))
    (call,) = collected.named("chat scripted")
    (event,) = call.events
    assert event.name == "anabranch.retry"
    assert dict(event.attributes or {}) == {"attempt": 1, "delay_s": 0.0, "http.response.status_code": 429}
    assert of(call)["anabranch.generation.attempts"] == 2
    assert round(seconds(call), 6) == 3
    assert of(call)["gen_ai.response.time_to_first_chunk"] == 2
    assert call.status.status_code is StatusCode.UNSET


def test_a_client_that_goes_away(collected: Collected) -> None:
    """What was stopped ends where it was stopped, as cancelled, which is no error."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton", left_after_s=2.5)
    assert collected.tree() == TREE
    (run,) = collected.named("invoke_agent skeleton")
    calls = collected.named("chat scripted")
    assert [of(call)["gen_ai.response.finish_reasons"] for call in calls] == [
        ("stop",),
        ("cancelled",),
        ("cancelled",),
        ("stop",),
    ]
    assert [round(seconds(call), 6) for call in calls] == [1, 1.5, 1.5, 1]
    assert of(run)["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert of(run)["anabranch.work"] == 35
    assert of(collected.spans[0])["http.response.status_code"] == 499
    assert {span.status.status_code for span in collected.spans} == {StatusCode.UNSET}


def test_a_generation_that_never_began_is_an_event(collected: Collected) -> None:
    """What the budget refused was no call."""
    backend = skeleton(*POINTS)
    budget = Budget(branches=2)
    serve([Tracing(collected.provider)], backend, strategy="skeleton", arguments={"budget": budget})
    (run,) = collected.named("invoke_agent skeleton")
    names = [event.name for event in run.events]
    assert names.count("anabranch.generation_not_started") == 2
    assert "anabranch.warning" in names
    assert len(collected.named("chat scripted")) == 2


def test_an_error_in_mid_stream(collected: Collected) -> None:
    """A reply that began well and ended badly is an error; one of the proxy's 5xx as well; other errors are not."""
    tracing = Tracing(collected.provider)
    passed_through([tracing], stream=True, error_code="bad_gateway", started_at=1.0)
    passed_through([tracing], status=502, started_at=2.0)
    passed_through([tracing], status=404, error_code="not_found", started_at=3.0)
    assert [(span.status.status_code, of(span).get("error.type")) for span in collected.spans] == [
        (StatusCode.ERROR, "bad_gateway"),
        (StatusCode.ERROR, "502"),
        (StatusCode.UNSET, None),
    ]


# What is not on spans


def everything(spans: Sequence[ReadableSpan]) -> str:
    return "\n".join(span.to_json() for span in spans)


def test_content_is_not_captured(collected: Collected) -> None:
    """Neither the question nor anything that the model wrote is on a span: of a label only its number."""
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    written = everything(collected.spans)
    assert QUESTION not in written
    assert "Sleep well" not in written
    assert "three" not in written
    labels = [of(call)["anabranch.generation.label"] for call in collected.named("chat scripted")]
    assert labels == ["outline", "1", "2", "3"]


def test_content_on_demand(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard variable asks for labels and messages in full."""
    monkeypatch.setenv(CONTENT, "true")
    serve([Tracing(collected.provider)], skeleton(*POINTS), strategy="skeleton")
    assert of(collected.named("chat scripted")[1])["anabranch.generation.label"] == "1. Sleep well"
    backend = ScriptedBackend([Reply.failing(RequestRejected("too odd"))])
    serve([Tracing(collected.provider)], backend)
    assert "too odd" in everything(collected.spans)


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("outline", "outline"),
        ("sample 3", "sample 3"),
        ("12", "12"),
        ("3. Why it rains", "3"),
        ("Why it rains", ""),
        ("", ""),
    ],
)
def test_labels(label: str, kept: str) -> None:
    """Of a label a name is kept, or a number in front."""
    assert plain(label) == kept


def test_probes_have_no_spans(collected: Collected) -> None:
    """Only what is below /v1 is traced."""
    passed_through([Tracing(collected.provider)], path="/health")
    assert collected.spans == []


def test_paths_do_not_name_spans(collected: Collected) -> None:
    """A span is named by the pattern that its path matches."""
    passed_through([Tracing(collected.provider)], path="/v1/models/org/x", method="GET")
    (span,) = collected.spans
    assert span.name == "GET /v1/models/{id}"
    assert of(span)["url.path"] == "/v1/models/org/x"


# Outside the proxy, and to a collector


def test_without_the_proxy(collected: Collected) -> None:
    """A listener's run is below the span that is current when the listener is made."""
    tracing = Tracing(collected.provider)

    async def scenario() -> None:
        async with Orchestrator(ScriptedBackend([Reply.of("yes")])) as orch:
            with collected.provider.get_tracer("mine").start_as_current_span("mine"):
                await orch.ask("Q", listeners=[tracing.listener()])
            await tracing.aclose()

    run_virtual(scenario())
    assert collected.tree() == "mine\n  invoke_agent sequential\n    chat scripted"


async def test_behind_a_real_proxy(upstream: Upstream, collected: Collected) -> None:
    """Over HTTP a request has the trace that its header names, and its run below it."""
    async with serving(upstream.url, observers=[Tracing(collected.provider)]) as client:
        header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = await client.ask(
            "/v1/chat/completions",
            {"model": "stub@sequential", "messages": [{"role": "user", "content": "hi"}]},
            headers=header,
        )
        assert answer.status == 200
    assert collected.tree() == "POST /v1/chat/completions\n  invoke_agent sequential\n    chat stub"
    assert {f"{span.context.trace_id:032x}" for span in collected.spans} == {TRACE}


class Collector(BaseHTTPRequestHandler):
    """Takes what an exporter sends."""

    got: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a provider, spans go where the standard variables say, at the latest as tracing is closed."""
    Collector.got = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        tracing = Tracing()
        serve([tracing], ScriptedBackend([Reply.of("yes")]))
        asyncio.run(tracing.aclose())
        server.shutdown()
    (resource,) = [each for request in Collector.got for each in request.resource_spans]
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "anabranch"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == [
        "chat scripted",
        "invoke_agent sequential",
        "POST /v1/chat/completions",
    ]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_an_exporter_that_there_is_not(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """A variable that asks for something else is an error that names it."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidParameter, match=variable):
        Tracing()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `OTEL_SDK_DISABLED` requests are served without spans."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    request = serve([Tracing()], ScriptedBackend([Reply.of("yes")]))
    assert request.status == 200


def test_without_the_extra() -> None:
    """Where OpenTelemetry is not installed, asking for tracing says what to install."""
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from anabranch.orchestrator.errors import MissingExtra\n"
        "try:\n    import anabranch.serving.proxy.observers.tracing\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "tracing needs an optional package: pip install 'anabranch[otel]'\n"


def test_a_provider_of_the_process_is_used() -> None:
    """What the process has set up is not replaced: no exporter of ours beside it."""
    script = (
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "from anabranch.serving.proxy.observers.tracing import Tracing\n"
        "import threading; Tracing(); print(threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
