"""The OpenAI backend on real servers: llama.cpp's and SGLang's `/v1`, each with a small real model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest

from anabranch.orchestrator.backend import Call, Delta, End
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import ContextTooLong, RequestRejected, UnsupportedCapability
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving.backends.openai import OpenAIBackend, from_url

SERVERS = (pytest.param("llamacpp", marks=pytest.mark.llama), pytest.param("sglang", marks=pytest.mark.sglang))
CAPITAL = Branch.of("What is the capital of France?")
COUNTING = Branch.of("Count from one to ten in words.").say("one, two, three,")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "llamacpp":
        return str(request.getfixturevalue("llama_openai_url"))
    native: str = request.getfixturevalue("sglang_url")
    return native.replace("sglang://", "http://")


@pytest.fixture
async def backend(url: str) -> AsyncIterator[OpenAIBackend]:
    async with aclosing(from_url(url)) as backend:
        yield backend


async def run(
    backend: OpenAIBackend, branch: Branch, *, max_tokens: int = 16, **wanted: Any
) -> tuple[str, End, list[Delta]]:
    """Text, end and deltas of a greedy call."""
    sampling = Sampling(temperature=0)
    call = Call(rid=uuid.uuid4().hex, branch=branch, max_tokens=max_tokens, sampling=sampling, **wanted)
    deltas = [delta async for delta in backend.stream(call)]
    assert deltas[-1].end is not None
    return "".join(delta.text for delta in deltas), deltas[-1].end, deltas


async def test_server_is_recognised(backend: OpenAIBackend, kind: str) -> None:
    """The probe finds the kind of server, its model and its context."""
    found = await backend.probe()
    assert len(found.models) == 1
    assert found.context_length
    assert found.prefill
    assert found.abort
    assert found.constraints == {"json_schema", "ebnf"} | ({"regex"} if kind == "sglang" else set())


async def test_plain_answer(backend: OpenAIBackend) -> None:
    """An answer streams in pieces, and its usage is what the server counted."""
    text, end, deltas = await run(backend, CAPITAL, max_tokens=8)
    assert text
    assert len(deltas) > 3
    assert end.usage is not None
    assert end.usage.prompt > 10
    assert 0 < end.usage.completion <= 8


async def test_token_cap(backend: OpenAIBackend) -> None:
    """A call cut by its cap says so, and has exactly that many tokens."""
    _, end, _ = await run(backend, COUNTING, max_tokens=3)
    assert end.finish_reason == "length"
    assert end.usage is not None
    assert end.usage.completion == 3


async def test_turn_is_continued(backend: OpenAIBackend) -> None:
    """The model goes on in the middle of the assistant's sentence."""
    text, end, _ = await run(backend, CAPITAL.say("The capital of France is"))
    assert text.startswith(" Paris")
    assert end.matched is None


async def test_white_space_at_the_end_of_a_turn_is_kept(backend: OpenAIBackend) -> None:
    """The turn so far is not trimmed: a space or a line break at its end is part of the prompt."""
    prompts = []
    for turn in ("The capital is", "The capital is ", "The capital is\n\n"):
        _, end, _ = await run(backend, CAPITAL.say(turn), max_tokens=1)
        assert end.usage is not None
        prompts.append(end.usage.prompt)
    assert prompts[1] > prompts[0]
    assert prompts[2] > prompts[0]


async def test_stop_string_is_named(backend: OpenAIBackend) -> None:
    """The text ends before the stop string, which is named and counted, so that it can be put back."""
    text, end, _ = await run(backend, COUNTING, stop=(" never", " five"))
    assert text == " four,"
    assert (end.finish_reason, end.matched, end.tail) == ("stop", " five", " five")
    assert end.usage is not None
    assert 0 < end.usage.completion < 8


async def test_own_end_is_no_stop_string(backend: OpenAIBackend) -> None:
    """When the model ends by itself no stop string is named, though there was one."""
    _, end, _ = await run(
        backend, CAPITAL.say("The capital of France is Paris"), max_tokens=64, stop=("zebra",)
    )
    assert (end.finish_reason, end.matched, end.tail) == ("stop", None, "")


async def test_json_schema(backend: OpenAIBackend) -> None:
    """Even a tiny model writes JSON that fits the schema."""
    constraint = Constraint(kind="json_schema", source=json.dumps(CITY))
    text, end, _ = await run(backend, CAPITAL, max_tokens=60, constraint=constraint)
    assert end.finish_reason == "stop"
    assert list(json.loads(text)) == ["city"]


async def test_grammar(backend: OpenAIBackend) -> None:
    """One spelling of a grammar serves both servers."""
    constraint = Constraint(kind="ebnf", source='root ::= "left" | "right"')
    text, _, _ = await run(backend, CAPITAL, constraint=constraint)
    assert text in ("left", "right")


async def test_regex(backend: OpenAIBackend, kind: str) -> None:
    """A regular expression is enforced, or refused before anything is sent."""
    constraint = Constraint(kind="regex", source="(yes|no)")
    if kind == "sglang":
        assert (await run(backend, CAPITAL, constraint=constraint))[0] in ("yes", "no")
    else:
        with pytest.raises(UnsupportedCapability, match="regex"):
            await run(backend, CAPITAL, constraint=constraint)


async def test_bad_schema_is_rejected(backend: OpenAIBackend) -> None:
    """A schema that the server cannot compile is a rejected request with status 400, not a lost capability."""
    constraint = Constraint(kind="json_schema", source='{"type": "nonsense"}')
    with pytest.raises(RequestRejected) as caught:
        await run(backend, CAPITAL, constraint=constraint)
    assert caught.value.status_code == 400
    assert "json_schema" in (await backend.probe()).constraints


async def test_logprobs(backend: OpenAIBackend) -> None:
    """Each token comes with its log-probability and the alternatives, likeliest first."""
    text, _, deltas = await run(backend, COUNTING, max_tokens=4, top_logprobs=3)
    tokens = [token for delta in deltas for token in delta.logprobs]
    assert "".join(token.token for token in tokens) == text
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top) == 3
        assert [logprob for _, logprob in token.top] == sorted((lp for _, lp in token.top), reverse=True)


async def test_labels_are_scored(backend: OpenAIBackend) -> None:
    """The likelier continuation scores higher, and no text is given."""
    branch = CAPITAL.say("The capital of France is")
    text, end, _ = await run(backend, branch, labels=("Paris", "London"))
    assert text == ""
    assert end.label_logprobs is not None
    assert end.label_logprobs["London"] < end.label_logprobs["Paris"] <= 0


async def test_cached_tokens(backend: OpenAIBackend) -> None:
    """The second call of a kind reports the prompt that it found in the cache."""
    branch = Branch.of(f"{uuid.uuid4().hex} The sea is deep and the sky is high. " * 8 + "What is deep?")
    await run(backend, branch, max_tokens=1)
    _, end, _ = await run(backend, branch, max_tokens=1)
    assert end.usage is not None
    assert end.usage.cached >= end.usage.prompt // 2
    assert (await backend.probe()).cached_tokens


async def test_context_too_long(backend: OpenAIBackend) -> None:
    """A prompt beyond the context is refused with status 400 and the word for what to do."""
    with pytest.raises(ContextTooLong) as caught:
        await run(backend, Branch.of("word " * 9000))
    assert caught.value.status_code == 400


async def test_many_calls_at_once(backend: OpenAIBackend) -> None:
    """More calls than the server has slots all finish, one connection each, with nothing left open."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(backend, COUNTING, max_tokens=4)) for _ in range(12)]
    assert all(task.result()[1].finish_reason == "length" for task in tasks)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_a_stream_stops_the_server(backend: OpenAIBackend, url: str, kind: str, how: str) -> None:
    """Closing a stream, or cancelling the task that reads it, ends the work on the server."""
    sampling = Sampling(temperature=0, extra={"ignore_eos": True})
    call = Call(rid=uuid.uuid4().hex, branch=Branch.of("Tell a story."), max_tokens=2500, sampling=sampling)
    root = url.removesuffix("/v1")
    before = await _aborted(root) if kind == "sglang" else 0.0
    async with aclosing(backend.stream(call)) as deltas:
        await anext(deltas)
        if how == "cancel":
            rest = asyncio.create_task(anext(deltas))
            await asyncio.sleep(0)
            rest.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rest
    async with asyncio.timeout(15):  # less than 2,500 tokens take
        # the server tells its state only when it is asked
        while not (await _aborted(root) > before if kind == "sglang" else await _is_idle(root)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def _aborted(root: str) -> float:
    lines = (await _get(f"{root}/metrics")).splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("sglang:num_aborted_requests_total")
    )


async def _is_idle(root: str) -> bool:
    return not any(slot["is_processing"] for slot in json.loads(await _get(f"{root}/slots")))


async def test_a_server_that_writes_says_that_it_has_no_embeddings(backend: OpenAIBackend) -> None:
    """The servers' own refusals, of two kinds, are understood."""
    with pytest.raises(UnsupportedCapability, match="has no embeddings"):
        await run(backend, Branch.of("x"), measure="embedding")
    assert not (await backend.probe()).has("embedding")
