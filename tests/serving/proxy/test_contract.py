"""What a whole chat completion says when a strategy answers, and what of the request it honours."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from proxy_server import QUESTION, Answer, Client, chat
from upstream import Upstream
from upstream_replies import POINTS, Ordinary, kind, listing

MODELS = ["stub@sequential", "stub@skeleton"]
models = pytest.mark.parametrize("model", MODELS)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def checked(answer: Answer) -> dict[str, Any]:
    """A completion that is one by the SDK's own types, strictly."""
    assert answer.status == 200, answer.content
    parsed = ChatCompletion.model_validate_json(answer.content, strict=True)
    body: dict[str, Any] = answer.json
    assert parsed.object == "chat.completion"
    assert parsed.id.startswith("chatcmpl-")
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == parsed.usage.prompt_tokens + parsed.usage.completion_tokens
    assert (parsed.model_extra or {})["anabranch"] == body["anabranch"]
    return body


@models
async def test_shape(model: str, proxy: Client) -> None:
    """It has all that OpenAI's has, echoes the model's name as asked, and keeps its own in one object."""
    answer = await proxy.chat(model)
    body = checked(answer)
    assert body["model"] == model
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert choice["logprobs"] is None
    assert body.keys() - ChatCompletion.model_fields.keys() == {"anabranch"}
    assert answer.headers["content-type"] == "application/json"


async def test_points_become_one_answer(proxy: Client) -> None:
    """The points stand in the answer in their order, each with its title."""
    text = checked(await proxy.chat("stub@skeleton"))["choices"][0]["message"]["content"]
    expected = [
        f"{number}. **{title}**: Of point {number} this is said." for number, title in enumerate(POINTS, 1)
    ]
    assert text == "\n\n".join(expected)


@models
async def test_figures_in_body_and_headers(model: str, proxy: Client) -> None:
    """Usage sums all branches; work, span, wasted and cached are in the object and in headers, and agree."""
    answer = await proxy.chat(model)
    body = checked(answer)
    about = body["anabranch"]
    branches = 4 if model.endswith("skeleton") else 1
    usage = about["usage"]
    assert usage["branches"] == branches
    assert body["usage"]["prompt_tokens"] == usage["prompt"] == 10 * branches
    assert body["usage"]["completion_tokens"] == usage["completion"] == usage["work"]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4 * branches}
    assert usage["span"] <= usage["work"]
    for name in ("branches", "work", "span", "wasted", "cached"):
        assert answer.headers[f"x-anabranch-{name}"] == str(usage[name])
    assert answer.headers["x-anabranch-strategy"] == about["strategy"] == model.partition("@")[2]
    assert answer.headers["x-anabranch-run-id"] == about["run_id"]
    assert about["active"] is True
    assert about["fell_back"] is None


@models
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_n(model: str, count: int, proxy: Client) -> None:
    """So many choices as asked for, numbered; the usage is that of all."""
    body = checked(await proxy.chat(model, n=count))
    assert [choice["index"] for choice in body["choices"]] == list(range(count))
    assert body["usage"]["prompt_tokens"] == count * (40 if model.endswith("skeleton") else 10)
    if count > 1:
        assert len({run["run_id"] for run in body["anabranch"]["runs"]}) == count


@models
async def test_n_does_not_go_upstream(model: str, proxy: Client, upstream: Upstream) -> None:
    """Each choice is a run of its own: no branch asks for several."""
    await proxy.chat(model, n=2)
    assert all(body.get("n") in (None, 1) for body in upstream.bodies)


async def test_seed_differs_by_choice_and_is_stable(proxy: Client, upstream: Upstream) -> None:
    """A seed gives each choice another one, the same at each repetition."""
    for _ in range(2):
        await proxy.chat("stub@sequential", n=3, seed=7)
    seeds = [body["seed"] for body in upstream.bodies]
    assert len(set(seeds[:3])) == 3
    assert sorted(seeds[:3]) == sorted(seeds[3:])
    assert all(isinstance(seed, int) and seed >= 0 for seed in seeds)


async def test_seed_differs_by_branch(proxy: Client, upstream: Upstream) -> None:
    """Branches of one run do not all draw alike, and a repetition draws the same again."""
    for _ in range(2):
        await proxy.chat("stub@skeleton", seed=7)
    points = [(kind(body), body["seed"]) for body in upstream.bodies if kind(body).startswith("point")]
    assert len({seed for _, seed in points[:3]}) == 3
    assert sorted(points[:3]) == sorted(points[3:])


@models
async def test_max_tokens(model: str, proxy: Client, upstream: Upstream) -> None:
    """A cap that cuts the answer gives `length`."""
    upstream.answer = Ordinary(*["word "] * 50)
    body = checked(await proxy.chat(model, max_tokens=3))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


async def test_max_completion_tokens_goes_before(proxy: Client, upstream: Upstream) -> None:
    """Of the two names for the cap the newer one counts."""
    await proxy.chat("stub@sequential", max_tokens=500, max_completion_tokens=3)
    (body,) = upstream.bodies
    assert [body.get(name) for name in ("max_tokens", "max_completion_tokens") if name in body] == [3]


async def test_max_tokens_is_shared_by_points(proxy: Client, upstream: Upstream) -> None:
    """The cap on a skeleton's answer is divided among its points."""
    await proxy.chat("stub@skeleton", max_tokens=300)
    caps = [body["max_tokens"] for body in upstream.bodies if kind(body).startswith("point")]
    assert caps == [100, 100, 100]


@models
@pytest.mark.parametrize("stop", ["this", ["nowhere", "this"], ["this", "is", "said", "x"]])
async def test_stop(model: str, stop: Any, proxy: Client, upstream: Upstream) -> None:
    """A stop string ends the answer before it, and is not part of it."""
    upstream.answer = Ordinary("Of all ", "this is ", "said.")
    body = checked(await proxy.chat(model, stop=stop))
    text = body["choices"][0]["message"]["content"]
    assert text.endswith(("Of all ", "Of point 1 "))
    assert "this" not in text
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_stop_is_not_the_outlines(proxy: Client, upstream: Upstream) -> None:
    """Stop strings are for the final answer: the outline is written without them."""
    await proxy.chat("stub@skeleton", stop=["Sleep"])
    (outline,) = [body for body in upstream.bodies if kind(body) == "outline"]
    assert not outline.get("stop")


@models
async def test_sampling_and_unknown_keys_reach_every_branch(
    model: str, proxy: Client, upstream: Upstream
) -> None:
    """Sampling parameters, and keys that OpenAI's API does not know, go to every branch as they are."""
    given = {
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
    }
    further = {
        "chat_template_kwargs": {"enable_thinking": False},
        "user": "me",
        "repetition_penalty": 1.1,
        "priority": 3,
    }
    checked(await proxy.chat(model, **given, **further))
    for body in upstream.bodies:
        assert {name: body.get(name) for name in (*given, *further)} == {**given, **further}


@models
async def test_what_the_engine_sets_stays_the_engines(model: str, proxy: Client, upstream: Upstream) -> None:
    """A client cannot give its branches one id for all: each could then be aborted with another's."""
    upstream.models = listing("stub", owner="sglang")
    checked(await proxy.chat(model, rid="mine", anabranch={"strategy": model.partition("@")[2]}))
    rids = [body["rid"] for body in upstream.bodies]
    assert "mine" not in rids
    assert len(set(rids)) == len(rids)


@models
async def test_the_conversation_reaches_every_branch(model: str, proxy: Client, upstream: Upstream) -> None:
    """System, developer and earlier turns are in every call, names and unknown fields included."""
    earlier = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {"role": "user", "content": "Hello.", "unknown_field": 1},
        {"role": "assistant", "content": "User: hi\nAssistant: hello"},
    ]
    messages = [*earlier, {"role": "user", "content": QUESTION}]
    checked(await proxy.ask("/v1/chat/completions", {"model": model, "messages": messages}))
    assert all(body["messages"][:3] == earlier for body in upstream.bodies)


@models
async def test_content_parts_of_text(model: str, proxy: Client, upstream: Upstream) -> None:
    """Text given as parts is text."""
    body = checked(await proxy.chat(model, content=[{"type": "text", "text": QUESTION}]))
    assert body["anabranch"]["fell_back"] is None


BEYOND: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "functions": {"functions": [TOOL["function"]]},
    "logprobs": {"logprobs": True},
    "response_format": {"response_format": {"type": "json_object"}},
    "images": {"content": [{"type": "text", "text": QUESTION}, IMAGE]},
    "audio": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
}


@models
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", BEYOND.values(), ids=BEYOND.keys())
async def test_what_a_strategy_does_not_honour(
    fields: dict[str, Any], stream: bool, model: str, proxy: Client, upstream: Upstream
) -> None:
    """It is never dropped: the server itself answers the request as it is, and the headers say so, and why."""
    answer = await proxy.chat(model, **fields, stream=stream)
    assert answer.status == 200
    assert answer.headers["x-anabranch-strategy"] == "sequential"
    assert answer.headers["x-anabranch-fell-back"]
    (body,) = upstream.bodies
    assert body == {**chat(**fields), "stream": stream}
    bare = await proxy.chat(**fields, stream=stream)
    assert answer.content == bare.content


@models
async def test_tool_history(model: str, proxy: Client, upstream: Upstream) -> None:
    """A conversation with tool calls reaches the server whole."""
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    answer = await proxy.ask("/v1/chat/completions", {"model": model, "messages": messages})
    assert answer.status == 200
    assert upstream.bodies[0]["messages"] == messages


@models
@pytest.mark.parametrize(
    "fields",
    [{"tools": []}, {"logprobs": False}, {"response_format": {"type": "text"}}, {"modalities": ["text"]}],
)
async def test_what_asks_for_nothing_special(model: str, fields: dict[str, Any], proxy: Client) -> None:
    """Empty tools and the usual format are within what a strategy does."""
    assert checked(await proxy.chat(model, **fields))["anabranch"]["active"]


async def test_falling_back_is_told(proxy: Client) -> None:
    """A question that does not suit is answered plainly, and both object and header say why."""
    answer = await proxy.chat("stub@skeleton", content="What is 3 * 4 + 5?")
    about = checked(answer)["anabranch"]
    assert about["active"] is False
    assert about["fell_back"]
    assert answer.headers["x-anabranch-fell-back"] == about["fell_back"]


INVALID: dict[str, tuple[bytes | dict[str, Any], str | None]] = {
    "no JSON": (b"{", None),
    "nothing": (b"", None),
    "an array": (b"[]", None),
    "not UTF-8": (b'{"model": "\xff"}', None),
    "deep": (b"[" * 100_000, None),
    "not a number": (
        b'{"model": "stub", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        None,
    ),
    "no messages": ({"model": "stub"}, "messages"),
    "empty messages": ({"model": "stub", "messages": []}, "messages"),
    "messages of text": ({"model": "stub", "messages": "hi"}, "messages"),
    "null messages": ({"model": "stub", "messages": None}, "messages"),
}
WRONG_TYPES: dict[str, dict[str, Any]] = {
    "n": {"n": 0},
    "n of text": {"n": "many"},
    "n too large": {"n": 100_000},
    "max_tokens": {"max_tokens": -1},
    "temperature": {"temperature": "hot"},
    "top_p": {"top_p": 7},
    "stop": {"stop": [1]},
    "stream_options": {"stream_options": "x"},
    "messages.0": {"messages": ["x"]},
}


@pytest.mark.parametrize(("body", "param"), INVALID.values(), ids=INVALID.keys())
async def test_invalid_bodies(
    body: bytes | dict[str, Any], param: str | None, proxy: Client, upstream: Upstream
) -> None:
    """What is no request is a 400 in the envelope, and nothing is asked of the server."""
    answer = await proxy.ask("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert upstream.requests == []


@models
@pytest.mark.parametrize("fields", WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
async def test_wrong_values(fields: dict[str, Any], model: str, proxy: Client, upstream: Upstream) -> None:
    """A value that cannot be is a 400 that names the field."""
    answer = await proxy.ask("/v1/chat/completions", {**chat(model), **fields})
    assert answer.status == 400
    assert str(answer.error["param"]).split(".")[0] == next(iter(fields))
    assert upstream.requests == []


@models
@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": "user"},
        {"role": 3, "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [3]},
        {"content": "x"},
    ],
    ids=["empty", "no content", "role", "content", "part", "no role"],
)
async def test_odd_messages(message: dict[str, Any], model: str, proxy: Client) -> None:
    """A message that makes no sense is never an error of the proxy's own."""
    answer = await proxy.ask("/v1/chat/completions", {"model": model, "messages": [message]})
    assert answer.status in (200, 400), answer.content
    assert answer.status == 200 or answer.error


async def test_temperature_zero(proxy: Client, upstream: Upstream) -> None:
    """Temperature 0 is honoured by every branch."""
    checked(await proxy.chat("stub@skeleton", temperature=0))
    assert {body["temperature"] for body in upstream.bodies} == {0}


HALF = b'{"model": "%b", "messages": [{"role": "user", "content": "\\ud800"}], "\\udfff": 1}'


async def test_half_characters(proxy: Client, upstream: Upstream) -> None:
    """Half a surrogate pair passes as it stands, in a request and in a reply; to branches it cannot be sent: a 400."""
    for model in (b"stub", b"stub@none"):
        assert (await proxy.ask("/v1/chat/completions", HALF % model)).status == 200
        assert upstream.bodies[-1]["messages"][0]["content"] == "\ud800"
    for model in (b"stub@sequential", b"stub@skeleton"):
        answer = await proxy.ask("/v1/chat/completions", HALF % model)
        assert answer.status == 400
        assert answer.error
    wrong = await proxy.ask("/v1/chat/completions", b'{"messages": [{}], "anabranch": {"\\ud800": 1}}')
    assert wrong.status == 400
    assert wrong.error


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_half_characters_in_an_answer(streamed: bool, proxy: Client, upstream: Upstream) -> None:
    """A character that a server tears apart over two chunks is whole again for clients that join the pieces."""
    upstream.answer = Ordinary("\ud83c", "\udf0d")
    answer = await proxy.chat("stub@sequential", stream=streamed)
    text = answer.text() if streamed else answer.json["choices"][0]["message"]["content"]
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == "🌍"
