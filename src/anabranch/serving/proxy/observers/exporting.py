"""Where spans go to: the tracer provider that the process has, or one that exports as the `OTEL_*` variables say."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from anabranch.orchestrator.errors import InvalidParameter

_PROTOCOL = "http/protobuf"


def provider_of_process() -> trace.TracerProvider | None:
    """The provider that was set up before us, if one was."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def own_provider() -> TracerProvider:
    """A provider of our own. Raises InvalidParameter where a variable asks for an exporter that there is not."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "anabranch"}))
    exporter = _exporter()
    provider = TracerProvider(resource=resource)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter() -> SpanExporter | None:
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if wanted == "none":
        return None
    if wanted == "console":
        return ConsoleSpanExporter()
    if wanted != "otlp":
        raise InvalidParameter("OTEL_TRACES_EXPORTER", f"{wanted!r}; there are otlp, console, none")
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or _PROTOCOL
    )
    if protocol != _PROTOCOL:
        raise InvalidParameter("OTEL_EXPORTER_OTLP_PROTOCOL", f"{protocol!r}; there is {_PROTOCOL}")
    return OTLPSpanExporter()
