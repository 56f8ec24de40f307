"""What a client is told when the model server fails, before and after the first byte, plain and with a strategy."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiohttp.test_utils import unused_port

from proxy_server import Answer, Client, chat, serving
from upstream import Behaviour, Upstream
from upstream_forms import (
    DONE,
    content_of,
    cut_in_body,
    event,
    flat,
    hung_up,
    in_turn,
    page,
    refusal,
    silent,
    stream,
    whole,
)
from upstream_replies import Ordinary, chat_events

WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True},
    "sequential": {"model": "stub@sequential"},
    "sequential, streamed": {"model": "stub@sequential", "stream": True},
    "skeleton": {"model": "stub@skeleton"},
    "skeleton, streamed": {"model": "stub@skeleton", "stream": True},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
NO_CHOICES: dict[str, Any] = {"id": "x", "object": "chat.completion", "choices": [], "usage": None}

REFUSALS: dict[str, tuple[Behaviour, int, dict[str, Any]]] = {
    "400": (
        refusal(400, "bad top_q", code="invalid_value", param="top_q"),
        400,
        {"message": "bad top_q", "code": "invalid_value", "param": "top_q"},
    ),
    "400 flat": (
        flat(400, "max_tokens is too large"),
        400,
        {"message": "max_tokens is too large", "type": "invalid_request_error"},
    ),
    "401": (
        refusal(401, "wrong key", type="authentication_error", code="invalid_api_key"),
        401,
        {"message": "wrong key", "code": "invalid_api_key"},
    ),
    "403 flat": (flat(403, "not you"), 403, {"message": "not you", "type": "permission_error"}),
    "404": (
        refusal(404, "no model", type="not_found_error", code="model_not_found"),
        404,
        {"code": "model_not_found"},
    ),
    "404 flat": (
        flat(404, "no model here", "NotFoundError"),
        404,
        {"message": "no model here", "code": "model_not_found"},
    ),
    "404 of FastAPI": (whole({"detail": "Not Found"}, 404), 404, {"message": "Not Found"}),
    "422 of FastAPI": (
        whole({"detail": [{"loc": ["body", "n"], "msg": "bad"}]}, 422),
        422,
        {"message": "n: bad"},
    ),
    "too long": (
        flat(400, "The maximum context length is 4096 tokens"),
        400,
        {"code": "context_length_exceeded"},
    ),
    "429": (
        refusal(429, "slow down", type="requests", code="rate_limit_exceeded", retry_after="7"),
        429,
        {"message": "slow down", "code": "rate_limit_exceeded"},
    ),
    "429 flat": (
        flat(429, "slow down", retry_after="7"),
        429,
        {"message": "slow down", "type": "rate_limit_error"},
    ),
    "500 of text": (
        content_of(b"Internal Server Error", 500, "text/plain"),
        502,
        {"message": "Internal Server Error"},
    ),
    "500 page": (page(500), 502, {}),
    "502 page": (page(502, "502 Bad Gateway"), 502, {}),
    "503": (refusal(503, "loading", type="unavailable", retry_after="7"), 503, {"message": "loading"}),
    "503 flat": (
        flat(503, "queue is full", retry_after="7"),
        503,
        {"message": "queue is full", "type": "overloaded_error"},
    ),
    "504 page": (page(504, "504 Gateway Time-out"), 504, {"type": "timeout_error"}),
    "529": (whole({"error": "overloaded"}, 529, retry_after="7"), 503, {"message": "overloaded"}),
}
NO_ANSWERS: dict[str, Behaviour] = {
    "a page in the place of an answer": page(200, "Log in"),
    "cut JSON": content_of(b'{"choices": [{"index": 0, "mess'),
    "no JSON": content_of(b"hello"),
    "nothing": content_of(b""),
    "an array": content_of(b"[]"),
    "no choices": whole(NO_CHOICES),
    "an error with status 200": whole(
        {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}
    ),
    "cut in the body": cut_in_body({"choices": [{"index": 0, "message": {"content": "half"}}]}),
    "hung up": hung_up,
    "redirected": content_of(b"", 302, "text/html", location="http://127.0.0.1:1/"),
}
NO_STREAMS: dict[str, Behaviour] = {
    "a page": page(200, "Log in"),
    "no events": stream(done=False),
    "only comments": stream(b": hi\n\n", done=False),
    "an error at once": stream(
        event({"error": {"message": "no", "type": "server_error", "param": None, "code": 502}})
    ),
    "an error at once, flat": stream(
        event({"object": "error", "message": "no", "type": "x", "param": None, "code": 502})
    ),
    "an error at once, unframed": stream(b'error: {"code":502,"message":"no","type":"server_error"}\n\n'),
    "a page of events": stream(b"<html><title>Log in</title></html>\n\n"),
    "cut at once": stream(end="cut"),
    "hung up": hung_up,
    "only the end": stream(),
}


def wanted(answer: Answer, status: int) -> dict[str, Any]:
    """The error of a reply that must be one, and no event stream."""
    assert answer.status == status, (answer.status, answer.content)
    return answer.error


@ways
@pytest.mark.parametrize(("behaviour", "status", "says"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_refusals(
    behaviour: Behaviour,
    status: int,
    says: dict[str, Any],
    way: dict[str, Any],
    proxy: Client,
    upstream: Upstream,
) -> None:
    """Before the first byte a refusal has its real status, one envelope, the server's words, and `Retry-After`."""
    upstream.answer = behaviour
    answer = await proxy.chat(**way)
    error = wanted(answer, status)
    assert {name: error[name] for name in says} == says
    assert "secret stack" not in answer.content.decode()
    if status in (429, 503):
        assert answer.headers["retry-after"] == "7"
    assert not answer.headers["content-type"].startswith("text/event-stream")


@ways
async def test_well_formed_errors_stay(way: dict[str, Any], proxy: Client, upstream: Upstream) -> None:
    """An error that is in OpenAI's envelope already stays as it is, fields that nobody knows included."""
    body = {"error": {"message": "no", "type": "strange", "param": None, "code": "odd", "new": [1]}}
    upstream.answer = whole(body, 400)
    assert (await proxy.chat(**way)).json == body


@pytest.mark.parametrize("way", ["whole", "sequential", "skeleton"])
@pytest.mark.parametrize("behaviour", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_never_200_without_an_answer(
    behaviour: Behaviour, way: str, proxy: Client, upstream: Upstream
) -> None:
    """What is no answer is a 502, whatever the server's status says."""
    upstream.answer = behaviour
    answer = await proxy.chat(**WAYS[way])
    assert wanted(answer, 502)["type"] == "server_error"


@pytest.mark.parametrize("way", ["streamed", "sequential, streamed", "skeleton, streamed"])
@pytest.mark.parametrize("behaviour", NO_STREAMS.values(), ids=NO_STREAMS.keys())
async def test_never_a_stream_without_an_answer(
    behaviour: Behaviour, way: str, proxy: Client, upstream: Upstream
) -> None:
    """A stream that begins with its failure is no stream but a reply with an error status."""
    upstream.answer = behaviour
    wanted(await proxy.chat(**WAYS[way]), 502)


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/v1/completions", {"choices": []}),
        ("/v1/embeddings", {"data": []}),
        ("/v1/embeddings", {"object": "list"}),
        ("/v1/responses", {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}),
    ],
)
async def test_other_endpoints_are_checked_too(
    path: str, reply: object, proxy: Client, upstream: Upstream
) -> None:
    """A completion without choices and embeddings without data are no answers either."""
    upstream.answer = whole(reply)
    wanted(await proxy.ask(path, {"model": "stub", "input": "x", "prompt": "x"}), 502)


async def test_null_usage_passes(proxy: Client, upstream: Upstream) -> None:
    """A server that does not count is no error, and with a strategy the proxy counts."""
    reply = {
        "id": "1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
        "usage": None,
    }
    upstream.answer = whole(reply)
    assert (await proxy.chat()).json == reply
    counted = await proxy.chat("stub@sequential")
    assert counted.json["choices"][0]["message"]["content"] == "Yes."
    assert all(
        isinstance(counted.json["usage"][name], int)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )


@ways
async def test_not_reachable(way: dict[str, Any]) -> None:
    """A server that is not there is a 502 at once."""
    async with serving(f"http://127.0.0.1:{unused_port()}/v1") as proxy:
        error = wanted(await proxy.chat(**way), 502)
        assert "127.0.0.1" in error["message"]
        assert (await proxy.ask("/health")).status == 200
        assert wanted(await proxy.ask("/ready"), 503)
        assert wanted(await proxy.ask("/v1/models"), 502)


@ways
async def test_stall_before_the_first_byte(way: dict[str, Any], upstream: Upstream) -> None:
    """A server that never answers is a 504 at the deadline, and is left alone then."""
    upstream.answer = silent
    async with serving(upstream.url, deadline_s=0.6) as proxy:
        answer = await proxy.chat(**way)
        if way.get("model") is None:
            assert wanted(answer, 504)["code"] == "timeout"
        else:
            assert answer.status in (200, 504), answer.content
        await upstream.quiet(1)


MIDDLE = [*chat_events({}, ["Half ", "of"])][:3]
WELL_FORMED = event({"error": {"message": "died", "type": "server_error", "param": None, "code": "x"}})
ENDS: dict[str, tuple[Behaviour, bool]] = {
    "cut": (stream(*MIDDLE, end="cut"), False),
    "cut in an event": (stream(*MIDDLE, b'data: {"choices": [{"ind', end="cut"), False),
    "ended without its end": (stream(*MIDDLE, done=False), False),
    "an error event": (stream(*MIDDLE, WELL_FORMED, done=False), True),
    "an error event and an end": (stream(*MIDDLE, WELL_FORMED, done=True), True),
    "a flat error": (
        stream(*MIDDLE, event({"object": "error", "message": "died", "type": "x", "param": None, "code": 500})),
        True,
    ),
    "an error in a bare string": (stream(*MIDDLE, event({"error": "died"})), True),
    "an unframed error": (
        stream(*MIDDLE, b'error: {"code":500,"message":"died","type":"server_error"}\n\n', done=False),
        False,
    ),
}


@pytest.mark.parametrize("model", ["stub", "stub@sequential"])
@pytest.mark.parametrize(("behaviour", "named"), ENDS.values(), ids=ENDS.keys())
async def test_mid_stream(
    behaviour: Behaviour, named: bool, model: str, proxy: Client, upstream: Upstream
) -> None:
    """What fails in mid-stream ends with one error event that SDKs see, after all that came before, and cleanly."""
    upstream.answer = behaviour
    answer = await proxy.chat(model, stream=True)
    assert answer.status == 200
    events = [each for each in answer.events if each != "[DONE]"]
    told = [each["error"] for each in events if isinstance(each.get("error"), dict)]
    assert len(told) == 1, answer.content
    assert told[0].keys() >= {"message", "type", "code"}
    assert "died" in told[0]["message"] or not named
    text = "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each.get("choices"))
    assert text == "Half of"
    if model == "stub@sequential":
        assert answer.events[-1] == {"error": told[0]}
        assert not any(choice["finish_reason"] for each in events for choice in each.get("choices", ()))


@pytest.mark.parametrize("model", ["stub", "stub@sequential"])
async def test_stall_in_mid_stream(model: str, upstream: Upstream) -> None:
    """A server that falls silent in mid-stream is given up at the deadline, with an event that says so."""
    upstream.answer = stream(*MIDDLE, end="stall")
    async with serving(upstream.url, deadline_s=0.6, upstream_idle_s=60) as proxy:
        answer = await proxy.chat(model, stream=True)
        await upstream.quiet(1)
    assert answer.status == 200
    if model == "stub":
        assert answer.events[-1]["error"]["type"] == "timeout_error"
    else:  # A run that reaches its deadline answers with what it has.
        assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_idle_limit(upstream: Upstream) -> None:
    """A stream in which nothing comes for too long is given up, too."""
    upstream.answer = stream(*MIDDLE, end="stall")
    async with serving(upstream.url, upstream_idle_s=0.3) as proxy:
        answer = await proxy.chat(stream=True)
    assert answer.events[-1]["error"]["type"] == "timeout_error"


# One branch of several


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "fault",
    [
        refusal(400, "no"),
        page(500),
        hung_up,
        refusal(429, "slow", retry_after="1"),
        stream(event({"choices": []}), done=False),
    ],
    ids=["400", "500", "hung up", "429", "empty"],
)
async def test_one_point_of_three(fault: Behaviour, streamed: bool, proxy: Client, upstream: Upstream) -> None:
    """A point that fails is left out and told of in `warnings`; its error text is never part of the answer."""
    upstream.answer = Ordinary(point2=fault)
    answer = await proxy.chat("stub@skeleton", stream=streamed)
    assert answer.status == 200
    if streamed:
        text, about = answer.text(), next(c["anabranch"] for c in answer.chunks if "anabranch" in c)
    else:
        text, about = answer.json["choices"][0]["message"]["content"], answer.json["anabranch"]
    assert [f"Of point {number} this is said." in text for number in (1, 2, 3)] == [True, False, True]
    assert about["warnings"]
    assert "slow" not in text


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_all_points(streamed: bool, proxy: Client, upstream: Upstream) -> None:
    """When every point fails the answer is the first one's error, with its status."""
    no = refusal(403, "not you", code="policy")
    upstream.answer = Ordinary(point1=no, point2=no, point3=no)
    assert wanted(await proxy.chat("stub@skeleton", stream=streamed), 403)["message"] == "not you"


async def test_one_choice_of_several(proxy: Client, upstream: Upstream) -> None:
    """With n=2 a failing choice fails the request: half an answer is none."""
    upstream.answer = in_turn(Ordinary(), refusal(400, "no more"))
    answer = await proxy.chat("stub@sequential", n=2)
    assert wanted(answer, 400)["message"] == "no more"
    await upstream.quiet(1)


# How often, and how long


async def test_plain_requests_are_asked_once(proxy: Client, upstream: Upstream) -> None:
    """What passes through is not repeated: clients have their own retries."""
    for fault in (hung_up, refusal(429, "slow", retry_after="0"), page(500), page(503)):
        upstream.requests.clear()
        upstream.answer = fault
        assert (await proxy.chat()).status >= 429
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("model", ["stub@sequential", "stub@skeleton"])
async def test_a_long_retry_after_is_the_clients(model: str, upstream: Upstream) -> None:
    """A server that wants a long wait is not waited for: the client learns of it at once, and decides."""
    upstream.answer = refusal(429, "slow", retry_after="7")
    async with serving(upstream.url, retry=None) as proxy:
        began = time.monotonic()
        answer = await proxy.chat(model)
        assert wanted(answer, 429)["message"] == "slow"
        assert answer.headers["retry-after"] == "7"
        assert time.monotonic() - began < 5
        assert len(upstream.requests) == 1


async def test_a_hiccup_is_survived(upstream: Upstream) -> None:
    """A branch whose first try fails is tried again, and the client sees nothing of it."""
    upstream.answer = Ordinary(point1=in_turn(page(503), Ordinary()), outline=in_turn(hung_up, Ordinary()))
    async with serving(upstream.url, retry=None) as proxy:
        answer = await proxy.chat("stub@skeleton")
    assert answer.status == 200
    assert "Of point 1 this is said." in answer.json["choices"][0]["message"]["content"]


async def test_one_clients_error_is_not_the_next_ones(proxy: Client, upstream: Upstream) -> None:
    """After any number of errors the next request is asked as if nothing had been."""
    upstream.answer = refusal(401, "wrong key")
    for _ in range(10):
        assert (await proxy.chat()).status == 401
        assert (await proxy.chat("stub@sequential")).status == 401
    upstream.answer = Ordinary()
    assert (await proxy.chat()).status == 200
    assert (await proxy.chat("stub@skeleton")).status == 200


async def test_done_comes_once(proxy: Client, upstream: Upstream) -> None:
    """A stream that ends well ends with one `[DONE]`."""
    for model in ("stub", "stub@sequential", "stub@skeleton"):
        content = (await proxy.ask("/v1/chat/completions", chat(model, stream=True))).content
        assert content.endswith(DONE)
        assert content.count(DONE) == 1
