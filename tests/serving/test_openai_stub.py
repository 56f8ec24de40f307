"""The OpenAI backend against replies that no healthy server sends: a local server that says what each test wants.

How healthy servers answer is tested on real ones, in `test_openai.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from anabranch.orchestrator.backend import Call, Delta, TokenUsage
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import (
    AuthenticationFailed,
    BackendError,
    BackendOverloaded,
    BackendUnavailable,
    ContextTooLong,
    InvalidParameter,
    MalformedResponse,
    ModelNotFound,
    RequestRejected,
    UnsupportedCapability,
)
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving.backends.openai import OpenAIBackend, from_url

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
SCHEMA = Constraint(kind="json_schema", source='{"type": "object"}')


class Stub:
    """A server whose answer to a chat completion is set by the test; it keeps the bodies of all requests."""

    def __init__(self) -> None:
        self.answer: Handler = stream(piece("ok"), piece(finish="stop"))
        self.models: Any = {"data": [{"id": "first"}, {"id": "second"}]}
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.listings = 0
        self.url = ""

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        self.listings += 1
        if isinstance(self.models, web.Response):
            return self.models
        return web.json_response(self.models)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(body := await request.json())
        self.keys.add(request.headers.get("Authorization"))
        return await self.answer(request, body)


def piece(text: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text, **delta}, "finish_reason": finish}]}


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def stream(*chunks: object, done: bool = True, cut: bool = False) -> Handler:
    """An answer of these chunks (bytes go out as they are); `cut` breaks the connection instead of ending it."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk if isinstance(chunk, bytes) else event(chunk))
        if cut:
            assert request.transport is not None
            request.transport.abort()
        elif done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return answer


def reply(status: int, body: object, **headers: str) -> Handler:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html", headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return answer


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    stub = Stub()
    app = web.Application()
    app.router.add_get("/v1/models", stub.list_models)
    app.router.add_post("/v1/chat/completions", stub.complete)
    app.router.add_post("/v1/embeddings", stub.complete)
    async with TestServer(app) as server:
        stub.url = f"http://127.0.0.1:{server.port}/v1"
        yield stub


@pytest.fixture
async def backend(stub: Stub) -> AsyncIterator[OpenAIBackend]:
    async with aclosing(from_url(stub.url)) as backend:
        yield backend


def call(question: Branch | str = "?", **wanted: Any) -> Call:
    branch = question if isinstance(question, Branch) else Branch.of(question)
    return Call(rid="0" * 32, branch=branch, **wanted)


async def run(backend: OpenAIBackend, wanted: Call | None = None) -> list[Delta]:
    return [delta async for delta in backend.stream(wanted or call())]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def failure(backend: OpenAIBackend, wanted: Call | None = None) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await run(backend, wanted)
    return caught.value


async def test_only_the_last_delta_has_an_end(stub: Stub, backend: OpenAIBackend) -> None:
    """Text comes as deltas, and one last delta carries the end."""
    stub.answer = stream(piece("a"), piece("b"), piece(finish="length"))
    deltas = await run(backend)
    assert text(deltas) == "ab"
    assert [delta.end is not None for delta in deltas] == [False, False, True]
    assert deltas[-1].end is not None
    assert deltas[-1].end.finish_reason == "length"


async def test_missing_usage_is_none(stub: Stub, backend: OpenAIBackend) -> None:
    """A server that never tells its counts leaves the usage open, so that the engine counts."""
    end = (await run(backend))[-1].end
    assert end is not None
    assert end.usage is None


async def test_usage_with_all_its_details(stub: Stub, backend: OpenAIBackend) -> None:
    """Cached and reasoning tokens are taken from the details, and the server is known to report its cache."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    stub.answer = stream(piece("a"), piece(finish="stop"), {"choices": [], "usage": usage})
    assert not (await backend.probe()).cached_tokens
    end = (await run(backend))[-1].end
    assert end is not None
    assert end.usage == TokenUsage(prompt=9, cached=8, completion=4, reasoning=3)
    assert (await backend.probe()).cached_tokens


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_goes_by_two_names(stub: Stub, backend: OpenAIBackend, field: str) -> None:
    """Reasoning is kept apart from the text under either name."""
    stub.answer = stream(piece(None, **{field: "hm"}), piece("yes"), piece(finish="stop"))
    deltas = await run(backend)
    assert [(delta.reasoning, delta.text) for delta in deltas[:2]] == [("hm", ""), ("", "yes")]


async def test_empty_chunks_are_no_text(stub: Stub, backend: OpenAIBackend) -> None:
    """Null chunks, comments, chunks without choices and an empty finish reason change nothing."""
    odd: tuple[object, ...] = (
        b": keep-alive\n\n",
        None,
        {"choices": []},
        {},
        piece(""),
        piece("a", finish=""),
        piece("b", finish=""),
    )
    stub.answer = stream(*odd, piece(finish="stop"))
    deltas = await run(backend)
    assert [delta.text for delta in deltas] == ["a", "b", ""]


async def test_whole_object_in_place_of_a_stream(stub: Stub, backend: OpenAIBackend) -> None:
    """A server that does not stream is read all the same."""
    whole = {
        "choices": [{"message": {"content": "all"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1},
    }
    stub.answer = reply(200, whole)
    assert text(await run(backend)) == "all"


@pytest.mark.parametrize("cut", [True, False])
async def test_cut_stream_is_unavailable(stub: Stub, backend: OpenAIBackend, cut: bool) -> None:
    """A reply that stops before its end is an error, whether the connection breaks or closes in order."""
    stub.answer = stream(piece("half"), cut=cut, done=False)
    async with aclosing(backend.stream(call())) as deltas:
        assert (await anext(deltas)).text == "half"
        with pytest.raises(BackendUnavailable) as caught:
            await anext(deltas)
    assert caught.value.retryable


async def test_hang_up_before_the_reply_is_unavailable(stub: Stub, backend: OpenAIBackend) -> None:
    """A server that hangs up without an answer is unavailable, not slow."""

    async def hang_up(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    stub.answer = hang_up
    error = await failure(backend)
    assert isinstance(error, BackendUnavailable)
    assert error.retryable


async def test_dead_server_is_unavailable() -> None:
    """Nobody listens: unavailable, worth a retry, and the address is named."""
    url = f"http://127.0.0.1:{unused_port()}/v1"
    async with aclosing(from_url(url)) as backend:
        with pytest.raises(BackendUnavailable, match=url) as caught:
            await backend.probe()
    assert caught.value.retryable
    assert str(caught.value) == f"{url}: no connection (Connection refused)"


async def test_what_is_known_is_said_at_once(stub: Stub, backend: OpenAIBackend) -> None:
    """Once the server has answered, probing waits for nothing: it ends at its first step."""
    known = await backend.probe()
    with pytest.raises(StopIteration) as ended:
        backend.probe().send(None)
    assert ended.value.value is known
    assert stub.listings == 1


async def test_closing_after_the_end_is_no_early_stop(stub: Stub, backend: OpenAIBackend) -> None:
    """A stream that is closed right after its last delta leaves its connection open for the next call."""
    peers = set()
    answer = stub.answer

    async def noting(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await answer(request, body)

    stub.answer = noting
    for _ in range(3):
        async with aclosing(backend.stream(call())) as deltas:
            async for delta in deltas:
                if delta.end is not None:
                    break
    assert len(peers) == 1


async def test_calls_that_wait_for_a_failing_probe_fail_with_it(stub: Stub, backend: OpenAIBackend) -> None:
    """When the server is down, calls that start together fail together; a later one asks again."""
    stub.models = web.Response(status=503)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(failure(backend)) for _ in range(20)]
    assert {type(task.result()) for task in tasks} == {BackendOverloaded}
    assert stub.listings == 1
    stub.models = []
    assert text(await run(backend)) == "ok"


NESTED = {
    "error": {"message": "maximum context length is 10", "code": "context_length_exceeded", "param": None}
}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, "<html><title>502 Bad Gateway</title></html>", BackendUnavailable),
        (401, {"error": {"message": "no key"}}, AuthenticationFailed),
        (404, {"object": "error", "message": "no such model", "code": 404}, ModelNotFound),
        (400, NESTED, ContextTooLong),
        (
            400,
            {"object": "error", "message": "longer than the model's context length", "code": 400},
            ContextTooLong,
        ),
        (400, {"detail": "bad"}, RequestRejected),
        (500, {"error": "broken"}, BackendError),
    ],
)
async def test_error_replies(
    stub: Stub, backend: OpenAIBackend, status: int, body: object, kind: type[BackendError]
) -> None:
    """Flat, nested and HTML errors keep their status and become the error that says what to do."""
    stub.answer = reply(status, body)
    error = await failure(backend)
    assert type(error) is kind
    assert error.status_code == status
    assert len(stub.bodies) == 1, "the SDK must not retry"


async def test_retry_after_may_be_a_date(stub: Stub, backend: OpenAIBackend) -> None:
    """A 429 carries the wait that the server asked for, in seconds, also when it was given as a date."""
    date = formatdate(time.time() + 30, usegmt=True)
    stub.answer = reply(429, {"error": {"message": "slow down"}}, **{"Retry-After": date})
    error = await failure(backend)
    assert isinstance(error, BackendOverloaded)
    assert error.retry_after == pytest.approx(30, abs=5)


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (event({"error": {"message": "queue is full", "code": 503}}), BackendOverloaded),
        (event({"error": "it broke"}), BackendUnavailable),
        (event({"object": "error", "message": "bad grammar", "code": 400}), RequestRejected),
        (b"data: {not json\n\n", MalformedResponse),
        (event({"choices": [{"delta": {"content": 5}}]}), MalformedResponse),
        (event({"choices": "none"}), MalformedResponse),
        (event(piece(finish="abort")), BackendUnavailable),
    ],
)
async def test_errors_in_the_middle_of_a_stream(
    stub: Stub, backend: OpenAIBackend, wire: bytes, kind: type[BackendError]
) -> None:
    """An error in the place of a chunk is raised as what it is, though the status was 200."""
    stub.answer = stream(piece("half"), wire)
    assert type(await failure(backend)) is kind


async def test_error_object_with_status_200(stub: Stub, backend: OpenAIBackend) -> None:
    """An error object is an error, whatever the status says."""
    stub.answer = reply(200, {"error": {"message": "wait", "code": 429}})
    assert isinstance(await failure(backend), BackendOverloaded)


async def test_web_page_in_place_of_a_reply(stub: Stub, backend: OpenAIBackend) -> None:
    """A page with status 200, as of a wrong path, is no answer."""
    stub.answer = reply(200, "<html>hello</html>")
    assert isinstance(await failure(backend), MalformedResponse)


async def test_missing_list_of_models_is_no_error(stub: Stub) -> None:
    """A server without /v1/models is used without names."""
    stub.models = web.Response(status=404)
    async with aclosing(from_url(stub.url)) as backend:
        assert (await backend.probe()).models == ()
        assert text(await run(backend)) == "ok"
    assert stub.bodies[0]["model"] == "default"


async def test_many_calls_probe_once(stub: Stub, backend: OpenAIBackend) -> None:
    """Calls that start together share one probe and one client."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(backend)) for _ in range(50)]
    assert {text(task.result()) for task in tasks} == {"ok"}
    assert stub.listings == 1
    assert stub.keys == {stub.keys.copy().pop()}


async def test_stop_strings_are_found_here(stub: Stub, backend: OpenAIBackend) -> None:
    """Where a server does not name the stop string, it is found across chunks and named, and not sent."""
    stub.answer = stream(piece("a <"), piece("/p"), piece("> b"), piece(finish="stop"))
    deltas = await run(backend, call(stop=("</p>", "never")))
    assert text(deltas) == "a "
    assert "stop" not in stub.bodies[0]
    assert deltas[-1].end is not None
    assert (deltas[-1].end.matched, deltas[-1].end.tail) == ("</p>", "</p>")


async def test_beginning_of_a_stop_string_at_the_end_is_text(stub: Stub, backend: OpenAIBackend) -> None:
    """What was held back as a possible stop string comes out when the model ends first."""
    stub.answer = stream(piece("a <"), piece("/p"), piece(finish="stop"))
    deltas = await run(backend, call(stop=("</p>",)))
    assert text(deltas) == "a </p"
    assert deltas[-1].end is not None
    assert deltas[-1].end.matched is None


async def test_closing_the_stream_drops_the_connection(stub: Stub, backend: OpenAIBackend) -> None:
    """Leaving a stream early is seen by the server at once."""
    gone = asyncio.Event()

    async def endless(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(event(piece("x")))
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    stub.answer = endless
    async with aclosing(backend.stream(call())) as deltas:
        await anext(deltas)
    async with asyncio.timeout(10):
        await gone.wait()


async def test_reasoning_cannot_be_continued(stub: Stub) -> None:
    """A turn that was cut inside separate reasoning is refused, as the API has no way to say it."""
    async with aclosing(from_url(stub.url + "?kind=vllm")) as backend:
        await backend.probe()
        from anabranch.orchestrator.branch import Message, Segment

        branch = Branch(
            messages=(Message(role="user", content="?"),), segments=(Segment(text="", reasoning="hm"),)
        )
        with pytest.raises(UnsupportedCapability, match="reasoning"):
            await run(backend, call(branch))


async def test_unknown_server_continues_no_turn(backend: OpenAIBackend) -> None:
    """A server that might silently begin a new turn is not asked to continue one."""
    assert not (await backend.probe()).prefill
    with pytest.raises(UnsupportedCapability, match="continue"):
        await run(backend, call(Branch.of("?").say("So")))


def refusing(field: str, message: str, status: int = 400) -> Handler:
    """An answer that rejects requests with this field, and takes others."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if field in body:
            return await reply(status, {"error": {"message": message}})(request, body)
        return await stream(piece("ok"), piece(finish="stop"))(request, body)

    return answer


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("stream_options", "Unknown parameter: stream_options"),
        ("temperature", "Unsupported value: 'temperature' does not support 0 with this model."),
        ("top_k", "Unrecognized request argument supplied: top_k"),
        ("seed", "body.seed: Extra inputs are not permitted"),
        ("response_format", "This model does not support response format `json_schema`"),
    ],
)
async def test_refused_fields_are_left_out(
    stub: Stub, backend: OpenAIBackend, field: str, message: str
) -> None:
    """A field that the server says it does not know is left out, at once and from then on."""
    stub.answer = refusing(field, message)
    wanted = call(sampling=Sampling(temperature=0, top_k=5, seed=1), constraint=SCHEMA)
    assert text(await run(backend, wanted)) == "ok"
    assert text(await run(backend, call(sampling=Sampling(temperature=0, top_k=5, seed=1)))) == "ok"
    assert [field in body for body in stub.bodies] == [True, False, False]
    assert ((await backend.probe()).constraints == frozenset()) == (field == "response_format")


async def test_calls_in_flight_learn_together(stub: Stub, backend: OpenAIBackend) -> None:
    """Siblings that are refused at the same time all go on without the field."""
    stub.answer = refusing("seed", "seed is not supported")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(backend, call(sampling=Sampling(seed=n)))) for n in range(5)]
    assert {text(task.result()) for task in tasks} == {"ok"}


async def test_schema_too_free_for_strict_mode(stub: Stub, backend: OpenAIBackend) -> None:
    """A schema that OpenAI's strict mode does not take is sent again without it."""

    async def picky(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        strict = body["response_format"]["json_schema"]["strict"]
        message = {
            "error": {"message": "Invalid schema for response_format 'answer'", "param": "response_format"}
        }
        return await (reply(400, message) if strict else stream(piece("{}", finish="stop")))(request, body)

    stub.answer = picky
    assert text(await run(backend, call(constraint=SCHEMA))) == "{}"
    assert (await backend.probe()).constraints == {"json_schema"}


async def test_token_cap_has_two_names(stub: Stub, backend: OpenAIBackend) -> None:
    """A server that wants `max_completion_tokens` gets it."""
    stub.answer = refusing("max_tokens", "'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    assert text(await run(backend, call(max_tokens=7))) == "ok"
    assert stub.bodies[-1]["max_completion_tokens"] == 7


async def test_complaint_about_a_value_is_no_refusal(stub: Stub, backend: OpenAIBackend) -> None:
    """A bad value is the caller's business: nothing is dropped, nothing is asked again."""
    stub.answer = refusing("temperature", "temperature must be at most 2")
    error = await failure(backend, call(sampling=Sampling(temperature=3)))
    assert type(error) is RequestRejected
    assert len(stub.bodies) == 1


async def test_refused_logprobs_are_a_missing_capability(stub: Stub, backend: OpenAIBackend) -> None:
    """What a call cannot do without turns the capability off and is an error, the next time before asking."""
    stub.answer = refusing("logprobs", "logprobs is not supported with this model")
    for _ in range(2):
        with pytest.raises(UnsupportedCapability):
            await run(backend, call(labels=("yes", "no")))
    assert len(stub.bodies) == 1
    assert not (await backend.probe()).labels


async def test_ignored_logprobs_are_a_missing_capability(stub: Stub, backend: OpenAIBackend) -> None:
    """A server that silently leaves log-probabilities out cannot score labels."""
    with pytest.raises(UnsupportedCapability):
        await run(backend, call(labels=("yes", "no")))
    assert (await backend.probe()).top_logprobs == 0


async def test_invalid_schema_text(backend: OpenAIBackend) -> None:
    """A schema that is not JSON is the caller's mistake, named as such."""
    with pytest.raises(InvalidParameter, match="constraint"):
        await run(backend, call(constraint=Constraint(kind="json_schema", source="{")))


async def test_closed_backend_says_so(backend: OpenAIBackend) -> None:
    """Closing twice is fine, and a call after it is refused in plain words."""
    await run(backend)
    await backend.aclose()
    await backend.aclose()
    error = await failure(backend)
    assert "closed" in str(error)
    assert not error.retryable


async def test_an_embedding_is_one_request_for_the_last_turn(stub: Stub, backend: OpenAIBackend) -> None:
    """The vector and the usage come from the server's answer; nothing of the conversation but the last turn goes out."""
    vector = {"data": [{"embedding": [0.5, -1]}], "usage": {"prompt_tokens": 7}, "model": "e"}
    stub.answer = reply(200, vector)
    (delta,) = await run(backend, call(Branch.of("not this").say("this"), measure="embedding"))
    assert stub.bodies == [{"model": "first", "input": "this", "encoding_format": "float"}]
    assert delta.end is not None
    assert (delta.end.measured, delta.end.usage, delta.end.model) == ((0.5, -1.0), TokenUsage(prompt=7), "e")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, "<html>Not Found</html>"),
        (405, {"detail": "Method Not Allowed"}),
        (501, {"error": {"code": 501, "message": "This server does not support embeddings."}}),
        (400, {"error": {"message": "The model does not support Embeddings API"}}),
        (404, {"error": {"message": "The model `first` does not support Embeddings API"}}),
    ],
)
async def test_a_server_without_embeddings_is_known_from_then_on(
    stub: Stub, backend: OpenAIBackend, status: int, body: object
) -> None:
    """The first refusal is an error that says so, and takes the capability away."""
    assert (await backend.probe()).has("embedding")
    stub.answer = reply(status, body)
    with pytest.raises(UnsupportedCapability, match="has no embeddings for 'first'"):
        await run(backend, call(measure="embedding"))
    assert not (await backend.probe()).has("embedding")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (
            404,
            {"error": {"message": "The model `first` does not exist", "code": "model_not_found"}},
            ModelNotFound,
        ),
        (400, {"error": {"message": "This model's maximum context length is 512 tokens."}}, RequestRejected),
        (429, {"error": {"message": "slow down"}}, BackendError),
        (503, {"error": {"message": "embedding failed"}}, BackendOverloaded),
        (200, {"data": []}, MalformedResponse),
        (200, {"data": [{"embedding": []}]}, MalformedResponse),
        (200, {"data": [{"embedding": ["x"]}]}, MalformedResponse),
    ],
)
async def test_other_failures_of_an_embedding_take_nothing_away(
    stub: Stub, backend: OpenAIBackend, status: int, body: object, kind: type[BackendError]
) -> None:
    """They are what they are for any call."""
    stub.answer = reply(status, body)
    assert isinstance(await failure(backend, call(measure="embedding")), kind)
    assert (await backend.probe()).has("embedding")
