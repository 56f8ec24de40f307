"""The proxy's own document: whole, true to the models that read requests, and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from anabranch.orchestrator.budget import Budget
from anabranch.serving.proxy.chat import ChatRequest
from anabranch.serving.proxy.openapi import document
from anabranch.serving.proxy.responses import ResponsesRequest
from proxy_server import Client


async def test_served(proxy: Client) -> None:
    """It is at `/openapi.json`, as JSON."""
    answer = await proxy.ask("/openapi.json")
    assert answer.status == 200
    assert answer.json == document()


def test_every_reference_leads_somewhere() -> None:
    """Nothing refers to a schema that is not there."""
    whole = document()
    for reference in references(whole):
        assert reference.rpartition("/")[2] in whole["components"]["schemas"], reference


def test_requests_are_those_that_are_read() -> None:
    """Each field that the proxy reads is in it, and other keys are allowed."""
    schemas = document()["components"]["schemas"]
    for model in (ChatRequest, ResponsesRequest):
        schema = schemas[model.__name__]
        assert schema["properties"].keys() == {*model.model_fields, "anabranch"}
        assert schema["additionalProperties"] is True


async def test_the_object_for_the_proxy(proxy: Client) -> None:
    """The `anabranch` object and its budget have the keys that a refusal lists, and no others."""
    extension = document()["components"]["schemas"]["Extension"]
    refused = await proxy.chat(anabranch={"x": 1})
    assert refused.error["message"].endswith(", ".join(sorted(extension["properties"])))
    budget = extension["properties"]["budget"]["anyOf"][0]
    assert budget["properties"].keys() == {each.name for each in fields(Budget)}
    assert extension["additionalProperties"] is budget["additionalProperties"] is False


async def test_paths_exist(proxy: Client) -> None:
    """Each path of the proxy's own answers."""
    for path in ("/health", "/ready", "/version", "/v1/models"):
        assert path in document()["paths"]
        assert (await proxy.ask(path)).status == 200


def test_it_is_json() -> None:
    """The document is plain JSON, with nothing of Python's own in it."""
    assert json.loads(json.dumps(document())) == document()


def references(part: Any) -> Iterator[str]:
    """All references in a part of the document."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)
