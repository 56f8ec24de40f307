"""The endpoints under requests that nobody would write: whatever comes, the proxy answers, and as its document says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="fuzzing needs schemathesis: pip install -e '.[dev]'")

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from anabranch.serving.proxy.openapi import document
from proxy_server import QUESTION, chat, client, serving
from upstream import Upstream
from upstream_replies import MODEL, WITH_AT, Ordinary, listing

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
few = settings(
    max_examples=25,
    suppress_health_check=list(HealthCheck),
)
schema = schemathesis.openapi.from_dict(document())


@contextmanager
def in_a_thread() -> Iterator[str]:
    """The proxy in front of a healthy server, in an event loop of its own; its URL."""
    ready, url = threading.Event(), ""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        nonlocal url
        async with Upstream(Ordinary(), listing(MODEL, WITH_AT)) as upstream, serving(upstream.url) as made:
            url = made.url
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(30)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the proxy listens."""
    with in_a_thread() as url:
        yield url


@schema.exclude(path_regex="^/(v1/anabranch|metrics)").parametrize()
@few
def test_every_operation(case: schemathesis.Case[Any], url: str) -> None:
    """No request, sensible or not, makes the proxy fail; replies are those of its own document."""
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=30)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "model",
        "messages",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "response_format",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "modalities",
        "audio",
        "reasoning_effort",
        "anabranch",
        "user",
        "input",
        "instructions",
        "text",
        "reasoning",
        "metadata",
        "chat_template_kwargs",
    ]
)
MODELS = st.sampled_from(["stub", "stub@skeleton", "stub@sequential", f"{WITH_AT}@skeleton", "stub@none"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
@settings(few, max_examples=60)
@given(model=MODELS, broken=st.dictionaries(KEYS, JSON, max_size=3), extension=st.none() | JSON)
def test_one_thing_wrong(path: str, model: str, broken: dict[str, object], extension: object, url: str) -> None:
    """A good request in which a few fields are nonsense is answered or refused, and never with a 500."""
    body = {**chat(model), "input": QUESTION, **broken}
    if extension is not None:
        body["anabranch"] = extension
    answered(url, path, json.dumps(body).encode())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/files"])
@few
@given(body=st.binary(max_size=200))
def test_any_bytes(path: str, body: bytes, url: str) -> None:
    """Bytes that are no JSON are a 400, or the server's business."""
    answered(url, path, body)


@few
@given(
    path=st.text(
        st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=30
    )
)
def test_any_path(path: str, url: str) -> None:
    """Odd paths are answered, too."""
    answered(url, "/v1/" + path, None)


@few
@given(
    headers=st.dictionaries(
        st.from_regex(r"\A[a-z-]{1,12}\Z"),
        st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=20),
        max_size=4,
    )
)
def test_any_headers(headers: dict[str, str], url: str) -> None:
    """Odd headers do no harm."""
    for name in (
        "host",
        "content-length",
        "transfer-encoding",
        "expect",
        "connection",
        "upgrade",
        "te",
        "accept-encoding",
        "content-encoding",
        "range",
    ):
        headers.pop(name, None)
    answered(
        url, "/v1/chat/completions", json.dumps(chat()).encode(), {**headers, "x-anabranch-strategy": "none"}
    )


def answered(url: str, path: str, body: bytes | None, headers: dict[str, str] | None = None) -> None:
    """The reply is no failure, and an error is in the envelope."""

    async def ask() -> None:
        async with client(url) as made:
            answer = await made.ask(path, body, headers=headers or {})
        assert answer.status < 500, (body, answer.content)
        if answer.status >= 400:
            assert answer.error

    asyncio.run(ask())
