"""What a streamed chat completion looks like when a strategy answers: as one from OpenAI's own servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from proxy_server import Answer, Client, chat, read_until, serving
from upstream import Upstream
from upstream_forms import bytewise, event, gated, in_turn, refusal, silent, stream
from upstream_replies import POINTS, Ordinary, chat_events

MODELS = ["stub@sequential", "stub@skeleton"]


def checked(answer: Answer, choices: int = 1) -> list[dict[str, Any]]:
    """The chunks of a stream that keeps to everything that clients rely on."""
    assert answer.status == 200, answer.content
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    chunks = answer.chunks
    for chunk in chunks:
        parsed = ChatCompletionChunk.model_validate(chunk, strict=True)
        assert parsed.object == "chat.completion.chunk"
        assert parsed.id.startswith("chatcmpl-")
        assert "anabranch" not in chunk or (parsed.model_extra or {})["anabranch"] == chunk["anabranch"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for index in range(choices):
        _check_choice([c for chunk in chunks for c in chunk["choices"] if c["index"] == index])
    return chunks


def _check_choice(parts: list[dict[str, Any]]) -> None:
    """Exactly one role, at the beginning; exactly one finish reason, at the end, with nothing in it."""
    assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert parts[0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [part["finish_reason"] for part in parts]
    assert reasons[:-1] == [None] * (len(parts) - 1)
    assert isinstance(reasons[-1], str)
    assert reasons[-1]
    assert parts[-1]["delta"] == {}
    assert all("role" not in part["delta"] for part in parts[1:])


@pytest.mark.parametrize("model", MODELS)
async def test_shape(model: str, proxy: Client) -> None:
    """Role, text, finish reason, `[DONE]`; one id for all; each chunk as the SDK's types have it; no usage unasked."""
    chunks = checked(await proxy.chat(model, stream=True))
    assert {chunk["model"] for chunk in chunks} == {model}
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("asked", [True, False, None])
async def test_usage_only_when_asked(model: str, asked: bool | None, proxy: Client) -> None:
    """With `include_usage` one last chunk has the usage and no choices, and the others have a null; else there is none."""
    chunks = checked(await proxy.chat(model, stream=True, stream_options={"include_usage": asked}))
    if not asked:
        assert not any("usage" in chunk for chunk in chunks)
        return
    *others, last = chunks
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    assert all(chunk["usage"] is None for chunk in others)
    assert all(chunk["choices"] for chunk in others)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [2, 3])
async def test_choices(model: str, count: int, proxy: Client) -> None:
    """Each of several choices has its own role, text, and finish reason."""
    answer = await proxy.chat(model, stream=True, n=count, stream_options={"include_usage": True})
    chunks = checked(answer, count)
    assert {c["index"] for chunk in chunks for c in chunk["choices"]} == set(range(count))
    assert len({answer.text(index) for index in range(count)}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == count * (6 if model.endswith("sequential") else 10)


@pytest.mark.parametrize("model", MODELS)
async def test_streamed_and_whole_say_the_same(model: str, proxy: Client) -> None:
    """The pieces of a stream are the text of the whole answer, and the figures agree."""
    streamed = await proxy.chat(model, stream=True)
    whole = (await proxy.chat(model)).json
    assert streamed.text() == whole["choices"][0]["message"]["content"]
    about = next(chunk["anabranch"] for chunk in streamed.chunks if "anabranch" in chunk)
    assert about["usage"] == whole["anabranch"]["usage"]


async def test_the_first_token_does_not_wait(proxy: Client, upstream: Upstream) -> None:
    """The first word of the first point is with the client while all points are still being written."""
    gate = asyncio.Event()
    first, *others = list(chat_events({}, ["Begun", " and done."]))
    held = gated(gate, [first, others[0]], others[1:])
    upstream.answer = Ordinary(point1=held, point2=silent, point3=silent)
    async with proxy.open("/v1/chat/completions", chat("stub@skeleton", stream=True)) as response:
        came = await read_until(response, b"Begun")
        assert POINTS[0].encode() in came
        assert not gate.is_set()


async def test_sequential_goes_token_by_token(proxy: Client, upstream: Upstream) -> None:
    """Plain decoding by the engine relays each token as it comes."""
    gate = asyncio.Event()
    events = list(chat_events({}, ["one ", "two"]))
    upstream.answer = gated(gate, events[:2], events[2:])
    async with proxy.open("/v1/chat/completions", chat("stub@sequential", stream=True)) as response:
        came = await read_until(response, b"one ")
        assert b"two" not in came
        gate.set()
        assert b"two" in await response.content.read()


@pytest.mark.parametrize("model", MODELS)
async def test_keep_alive(model: str, upstream: Upstream) -> None:
    """While nothing is said, comments keep the connection alive, and clients read none of them as a chunk."""
    gate = asyncio.Event()
    upstream.answer = gated(gate, [], list(chat_events({}, ["1. First point\n", "2. Second point\n"])))
    async with (
        serving(upstream.url, keep_alive_s=0.05) as proxy,
        proxy.open("/v1/chat/completions", chat(model, stream=True)) as response,
    ):
        assert (await response.content.readany()).startswith(b": keep-alive\n\n")
        came = await read_until(response, b": keep-alive\n\n" * 3)
        gate.set()
        upstream.answer = Ordinary()
        came += await response.content.read()
    checked(Answer(status=response.status, headers=response.headers, content=came))


async def test_keep_alive_by_default_from_the_first_silent_second(proxy: Client, upstream: Upstream) -> None:
    """Without any setting, the first comment comes after about a second."""
    upstream.answer = silent
    async with proxy.open("/v1/chat/completions", chat("stub@skeleton", stream=True)) as response:
        assert response.status == 200
        assert (await asyncio.wait_for(response.content.readany(), 10)) == b": keep-alive\n\n"


async def test_an_error_after_a_comment_is_an_event(upstream: Upstream) -> None:
    """Once comments went out the status is sent: what fails then is told of in one event, and the stream ends."""
    gate = asyncio.Event()

    async def late(request: Any, reply: Any) -> None:
        await gate.wait()
        await refusal(400, "no", code="odd")(request, reply)

    upstream.answer = late
    async with (
        serving(upstream.url, keep_alive_s=0.05) as proxy,
        proxy.open("/v1/chat/completions", chat("stub@skeleton", stream=True)) as response,
    ):
        came = await response.content.readany()
        gate.set()
        came += await response.content.read()
    (told,) = Answer(status=200, headers={}, content=came).events
    assert told["error"]["message"] == "no"
    assert told["error"]["code"] == "odd"


async def test_split_utf8(proxy: Client, upstream: Upstream) -> None:
    """Characters that come torn apart are whole in the answer."""
    upstream.answer = bytewise(stream(*chat_events({}, ["naïve ", "🌍", "日本"]), done=False))
    answer = await proxy.chat("stub@sequential", stream=True)
    checked(answer)
    assert answer.text() == "naïve 🌍日本"


async def test_line_separators_in_the_text(proxy: Client, upstream: Upstream) -> None:
    """Characters at which some readers of lines break, and events in the text, stay inside their chunk."""
    odd = "a\u2028b\u2029c\x85d\r\ndata: [DONE]\n\n: e\x0bf\x1cg"
    upstream.answer = Ordinary(odd)
    answer = await proxy.chat("stub@sequential", stream=True)
    checked(answer)
    assert answer.text() == odd


async def test_reasoning_stays_reasoning(proxy: Client) -> None:
    """What a model thinks comes as `reasoning_content`, streamed and not, and never carries a finish reason."""
    answer = await proxy.chat("stub@sequential", stream=True, reasoning_effort="high")
    chunks = checked(answer)
    thought = [c["delta"].get("reasoning_content") for chunk in chunks for c in chunk["choices"]]
    assert "".join(filter(None, thought)) == "Hm. "
    whole = await proxy.chat("stub@sequential", reasoning_effort="high")
    assert whole.json["choices"][0]["message"]["reasoning_content"] == "Hm. "


async def test_progress_only_when_asked(proxy: Client) -> None:
    """With `progress` the branches are told of as reasoning, before the answer begins; without, nothing is."""
    told = await proxy.chat("stub@skeleton", stream=True, anabranch={"progress": True})
    chunks = checked(told)
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"]]
    reasoning = [bool(delta.get("reasoning_content")) for delta in deltas]
    assert any(reasoning)
    first_word = next(place for place, delta in enumerate(deltas) if delta.get("content"))
    assert not any(reasoning[first_word:])
    silent_answer = await proxy.chat("stub@skeleton", stream=True)
    assert b"reasoning_content" not in silent_answer.content
    assert told.text() == silent_answer.text()


async def test_figures_on_the_finish_chunk(proxy: Client) -> None:
    """The `anabranch` object is on the chunk that ends the choice, and on no other."""
    chunks = checked(await proxy.chat("stub@skeleton", stream=True))
    with_it = [chunk for chunk in chunks if "anabranch" in chunk]
    assert [chunk["choices"][0]["finish_reason"] for chunk in with_it] == ["stop"]
    assert with_it[0]["anabranch"]["usage"]["branches"] == 4


async def test_odd_servers(proxy: Client, upstream: Upstream) -> None:
    """Empty finish reasons, null roles, null chunks and late usage of a server do not show in the answer."""
    upstream.answer = stream(
        event({"choices": [{"index": 0, "delta": {"role": None, "content": None}, "finish_reason": ""}]}),
        b"data: null\n\n",
        event({"choices": []}),
        event({"choices": [{"index": 0, "delta": {"role": "", "content": "Fine."}, "finish_reason": ""}]}),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        event(
            {
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1},
            }
        ),
    )
    answer = await proxy.chat("stub@sequential", stream=True)
    checked(answer)
    assert answer.text() == "Fine."


async def test_a_retried_branch_says_nothing_twice(upstream: Upstream) -> None:
    """A branch that was tried again after it failed before its first word shows once."""
    upstream.answer = Ordinary(point1=in_turn(stream(end="cut"), Ordinary()))
    async with serving(upstream.url, retry=None) as proxy:
        answer = await proxy.chat("stub@skeleton", stream=True)
    checked(answer)
    assert answer.text().count("Of point 1") == 1
