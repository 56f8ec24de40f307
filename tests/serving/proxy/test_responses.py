"""The Responses API by a strategy: bodies and events as the SDK's own types have them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import Field, TypeAdapter

from proxy_server import QUESTION, Answer, Client, serving
from upstream import Upstream
from upstream_forms import refusal, silent, stream
from upstream_replies import Ordinary, chat_events

MODELS = ["stub@sequential", "stub@skeleton"]
models = pytest.mark.parametrize("model", MODELS)
EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[ResponseStreamEvent, Field(discriminator="type")])


async def respond(proxy: Client, model: str = "stub@skeleton", given: Any = QUESTION, **fields: Any) -> Answer:
    return await proxy.ask("/v1/responses", {"model": model, "input": given, **fields})


def checked(answer: Answer) -> dict[str, Any]:
    """A whole response that is one by the SDK's types, strictly."""
    assert answer.status == 200, answer.content
    parsed = Response.model_validate_json(answer.content, strict=True)
    body: dict[str, Any] = answer.json
    assert parsed.output_text == body["output"][0]["content"][0]["text"]
    assert (parsed.model_extra or {})["anabranch"] == body["anabranch"]
    return body


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, each one by the SDK's types, numbered without gaps, and named as its type."""
    assert answer.status == 200, answer.content
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = [block for block in answer.content.decode().split("\n\n") if block and not block.startswith(":")]
    events = []
    for block in blocks:
        name, data = block.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {parsed['type']}"
        events.append(parsed)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    return events


@models
async def test_whole(model: str, proxy: Client) -> None:
    """A completed response with one message, the usage of all branches, and figures in headers."""
    answer = await respond(proxy, model)
    body = checked(answer)
    assert body["status"] == "completed"
    assert body["model"] == model
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    assert body["usage"]["input_tokens"] == (40 if model.endswith("skeleton") else 10)
    assert answer.headers["x-anabranch-strategy"] == body["anabranch"]["strategy"]


@models
async def test_streamed(model: str, proxy: Client) -> None:
    """Created, in progress, item, part, deltas, and each closed again; deltas and ends give the same text."""
    events = events_of(await respond(proxy, model, stream=True))
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    text = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    done, part, item, completed = events[-4:]
    final = completed["response"]["output"][0]
    assert text == done["text"] == part["part"]["text"] == item["item"]["content"][0]["text"]
    assert (
        final["content"][0]["text"]
        == text
        == checked(await respond(proxy, model))["output"][0]["content"][0]["text"]
    )
    assert len({each["response"]["id"] for each in events if "response" in each}) == 1
    assert len({each["item_id"] for each in events if "item_id" in each} | {final["id"]}) == 1


@models
async def test_cut_by_the_cap(model: str, proxy: Client, upstream: Upstream) -> None:
    """An answer that a cap cuts is incomplete, and says why."""
    upstream.answer = Ordinary(*["word "] * 50)
    body = checked(await respond(proxy, model, max_output_tokens=20))
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    events = events_of(await respond(proxy, model, max_output_tokens=20, stream=True))
    assert events[-1]["type"] == "response.incomplete"


async def test_conversation(proxy: Client, upstream: Upstream) -> None:
    """Instructions and turns become the conversation, parts of text their text."""
    given = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"role": "user", "content": QUESTION},
    ]
    checked(await respond(proxy, "stub@sequential", given, instructions="You are kind.", temperature=0.5))
    (body,) = upstream.bodies
    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "You are kind."),
        ("developer", "Be brief."),
        ("user", "Hello."),
        ("assistant", "Hi."),
        ("user", QUESTION),
    ]
    assert body["temperature"] == 0.5


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_effort_is_forwarded(streamed: bool, proxy: Client, upstream: Upstream) -> None:
    """The effort reaches every branch under the name that chat completions have for it."""
    await respond(proxy, reasoning={"effort": "high"}, stream=streamed)
    assert {body["reasoning_effort"] for body in upstream.bodies} == {"high"}


BEYOND: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "web_search"}]},
    "previous response": {"previous_response_id": "resp_1"},
    "format": {"text": {"format": {"type": "json_object"}}},
    "background": {"background": True},
    "image": {"given": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
    "tool output": {"given": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
}


@pytest.mark.parametrize("fields", BEYOND.values(), ids=BEYOND.keys())
async def test_what_is_the_servers(fields: dict[str, Any], proxy: Client, upstream: Upstream) -> None:
    """What only a server's own Responses API does goes there, whole, and the headers say so."""
    answer = await respond(proxy, **fields)
    assert answer.status == 200
    assert answer.headers["x-anabranch-strategy"] == "sequential"
    assert answer.headers["x-anabranch-fell-back"]
    assert upstream.requests[0].path == "/v1/responses"
    given = {"input": fields.get("given", QUESTION), **{k: v for k, v in fields.items() if k != "given"}}
    assert upstream.bodies[0] == {"model": "stub", **given}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": ""},
        {"input": []},
        {"input": 3},
        {"input": [3]},
        {"input": "x", "max_output_tokens": 0},
        {"input": "x", "temperature": "hot"},
    ],
    ids=["none", "empty", "no turns", "number", "numbers", "cap", "temperature"],
)
async def test_invalid(body: dict[str, Any], proxy: Client, upstream: Upstream) -> None:
    """What is no request for a strategy is a 400 that names the field."""
    answer = await proxy.ask("/v1/responses", {"model": "stub@skeleton", **body})
    assert answer.status == 400
    assert answer.error["param"]
    assert upstream.requests == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_refused(streamed: bool, proxy: Client, upstream: Upstream) -> None:
    """A refusal before the first byte has its own status, streamed or not."""
    upstream.answer = refusal(429, "slow", code="rate_limit_exceeded", retry_after="7")
    answer = await respond(proxy, stream=streamed)
    assert answer.status == 429
    assert answer.error["message"] == "slow"
    assert answer.headers["retry-after"] == "7"


async def test_failure_in_the_middle(proxy: Client, upstream: Upstream) -> None:
    """A failure in mid-stream is one `error` event of this API's own form, and nothing after it."""
    upstream.answer = stream(*list(chat_events({}, ["Half ", "of"]))[:3], end="cut")
    events = events_of(await respond(proxy, "stub@sequential", stream=True))
    assert [each["type"] for each in events].count("error") == 1
    assert events[-1]["type"] == "error"
    assert events[-1]["message"]


async def test_keep_alive(upstream: Upstream) -> None:
    """While nothing is said, comments keep the connection alive."""
    upstream.answer = silent
    body = {"model": "stub@skeleton", "input": QUESTION, "stream": True}
    async with serving(upstream.url, keep_alive_s=0.05) as proxy, proxy.open("/v1/responses", body) as response:
        assert await response.content.readany() == b": keep-alive\n\n"
