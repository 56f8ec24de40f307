"""The OpenAPI 3.1 document of the proxy: precise about what the proxy itself reads, open about all that passes through.

Schemas of requests come from the models that read them, so that the two cannot differ. Nothing here is served by
itself: `document()` is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import BaseModel

from anabranch import __version__
from anabranch.orchestrator.answer import RunUsage
from anabranch.orchestrator.budget import Budget
from anabranch.serving.proxy.chat import ChatRequest
from anabranch.serving.proxy.choice import EXTENSION, HEADER
from anabranch.serving.proxy.responses import ResponsesRequest

_REF = "#/components/schemas/{model}"
_OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}

Schema = dict[str, Any]


def document() -> dict[str, Any]:
    """The whole document, as a JSON object."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anabranch",
            "version": __version__,
            "summary": "OpenAI's API in front of a model server; a request that names a strategy is decoded as branches.",
        },
        "paths": {**_generation_paths(), **_model_paths(), **_run_paths(), **_own_paths()},
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


# Paths


def _generation_paths() -> dict[str, Any]:
    return {
        "/v1/chat/completions": {"post": _generation("Answer a conversation", "ChatRequest", "ChatCompletion")},
        "/v1/responses": {"post": _generation("Answer, as a response", "ResponsesRequest", "Response")},
        "/v1/completions": {"post": _generation("Continue a text; passes through", "Passing", "Completion")},
        "/v1/embeddings": {"post": _generation("Embed texts; passes through", "Passing", "Embeddings")},
    }


def _model_paths() -> dict[str, Any]:
    return {
        "/v1/models": {"get": _reading("The server's models, and each with each strategy", "ModelList")},
        "/v1/models/{id}": {"get": _reading("One of them", "Model", parameters=[_in_path("id")])},
    }


def _run_paths() -> dict[str, Any]:
    most = _in_query("limit", {"type": "integer", "minimum": 1}, "How many, at most.")
    after = _in_query("after", _COUNT, "Leave so many events out.")
    form = _in_query("format", {"enum": ["json", "jsonl"]}, "A JSON object, or a trace file.")
    one = _reading("One run with its events", "Run", parameters=[_in_path("id"), after, form])
    one["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": _TEXT}
    return {
        "/v1/anabranch/runs": {"get": _reading("Recent runs, newest first", "RunList", parameters=[most])},
        "/v1/anabranch/runs/{id}": {"get": one},
    }


def _own_paths() -> dict[str, Any]:
    metrics = _reading("Figures for Prometheus", "Object")
    metrics["responses"]["200"] = {"description": "Metrics.", "content": {"text/plain": {"schema": _TEXT}}}
    return {
        "/health": {"get": _reading("Whether the proxy lives; asks nothing of the server", "Status")},
        "/ready": {"get": _reading("Whether the model server can be reached", "Status")},
        "/version": {"get": _reading("Name and version", "Version")},
        "/metrics": {"get": metrics},
    }


def _generation(summary: str, request: str, reply: str) -> dict[str, Any]:
    answered: dict[str, Any] = {"application/json": {"schema": _to(reply)}}
    answered["text/event-stream"] = {
        "schema": {"description": "With `stream`: the answer as server-sent events."}
    }
    header = {
        "name": HEADER,
        "in": "header",
        "description": "Name of a strategy or preset; `none` passes through.",
        "schema": {"type": "string", "pattern": "^[!-~]*$"},
    }
    return {
        "summary": summary,
        "parameters": [header] if request != "Passing" else [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _to(request)}}},
        "responses": {"200": {"description": "The answer.", "content": answered}, **_errors()},
    }


def _reading(summary: str, reply: str, parameters: list[Any] | None = None) -> dict[str, Any]:
    content = {"application/json": {"schema": _to(reply)}}
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": {"description": "What was asked for.", "content": content}, **_errors()},
    }


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _to("Error")}}
    waits = {"Retry-After": {"description": "Seconds to wait.", "schema": _COUNT}}
    return {
        "4XX": {
            "description": "The request cannot be answered as it is.",
            "content": content,
            "headers": waits,
        },
        "5XX": {"description": "The model server or the proxy failed.", "content": content, "headers": waits},
    }


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": dict(schema)}


def _to(name: str) -> Schema:
    return {"$ref": _REF.format(model=name)}


# Schemas


def _schemas() -> dict[str, Schema]:
    return {
        **_of_model(ChatRequest),
        **_of_model(ResponsesRequest),
        **_requests(),
        **_replies(),
        "Error": _object(error=_object(message=_TEXT, type=_nullable(_TEXT), param={}, code={})),
        "Object": _OPEN,
    }


def _of_model(model: type[BaseModel]) -> dict[str, Schema]:
    """The schema of a request, with those that it refers to, and the object that is for the proxy."""
    schema = model.model_json_schema(ref_template=_REF)
    parts: dict[str, Schema] = schema.pop("$defs", {})
    schema["properties"][EXTENSION] = {"anyOf": [_to("Extension"), {"type": "null"}]}
    return {**parts, model.__name__: schema}


def _requests() -> dict[str, Schema]:
    limits: dict[str, Any] = {
        each.name: {"type": ["integer", "null"], "exclusiveMinimum": 0} for each in fields(Budget)
    }
    limits["deadline_s"] = {"type": ["number", "null"], "exclusiveMinimum": 0}
    budget = {"type": "object", "properties": limits, "additionalProperties": False}
    known: dict[str, Any] = {
        "strategy": {"type": ["string", "null"], "description": "A strategy, a preset, or `none`."},
        "params": {"anyOf": [_OPEN, {"type": "null"}], "description": "The strategy's parameters."},
        "budget": {"anyOf": [budget, {"type": "null"}], "description": "What the run may use."},
        "progress": {"type": ["boolean", "null"], "description": "Tell of the branches as reasoning."},
        "backend": {"type": ["string", "null"], "description": "Another model server, of those allowed."},
    }
    return {
        "Extension": {"type": "object", "properties": known, "additionalProperties": False},
        "Passing": {"type": "object", "properties": {"model": _TEXT}, "additionalProperties": True},
    }


def _replies() -> dict[str, Schema]:
    model = _object(id=_TEXT, object={"const": "model"})
    choices = {"type": "array", "minItems": 1, "items": _OPEN}
    completion = _object(choices=choices)
    answer = {**completion, "properties": {**completion["properties"], EXTENSION: _to("About")}}
    return {
        "About": {
            "type": "object",
            "description": "How the answer came about; only where a strategy answered.",
            "properties": {
                "strategy": _TEXT,
                "active": {"type": "boolean"},
                "fell_back": _nullable(_TEXT),
                "warnings": {"type": "array", "items": _TEXT},
                "figures": _OPEN,
                "usage": {"type": "object", "properties": _figures(), "additionalProperties": True},
            },
            "additionalProperties": True,
        },
        "ChatCompletion": answer,
        "Completion": completion,
        "Embeddings": _object(data={"type": "array", "minItems": 1, "items": _OPEN}),
        "Response": _OPEN,
        "Model": model,
        "ModelList": _object(object={"const": "list"}, data={"type": "array", "items": _to("Model")}),
        "Run": _OPEN,
        "RunList": _object(object={"const": "list"}, data={"type": "array", "items": _OPEN}),
        "Status": _object(status=_TEXT),
        "Version": _object(name=_TEXT, version=_TEXT),
    }


def _figures() -> dict[str, Any]:
    return {**{each.name: _COUNT for each in fields(RunUsage)}, "parallelism": {"type": "number", "minimum": 1}}


def _object(**properties: Any) -> Schema:
    """An object that has all of these, and may have more."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": True,
    }


def _nullable(schema: Mapping[str, Any]) -> Schema:
    return {"anyOf": [dict(schema), {"type": "null"}]}
