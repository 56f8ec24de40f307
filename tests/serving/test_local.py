"""The embedded engine for real: llama.cpp on the small model, with greedy sampling. Its process: test_local_process."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from anabranch.orchestrator.backend import PrefixSharing
from anabranch.orchestrator.branch import Branch, Segment
from anabranch.orchestrator.errors import ContextTooLong, ModelNotFound, RequestRejected, UnsupportedCapability
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving.backends.local import from_url
from anabranch.serving.backends.local.backend import LocalBackend
from llama_server import HELLO, RIVER, ask, asks_server, decode, stream

pytestmark = [pytest.mark.llama, pytest.mark.asyncio(loop_scope="module")]

FRUITS = '{"type":"array","items":{"type":"string","maxLength":12},"minItems":3,"maxItems":3}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(local_backend_url: str) -> AsyncIterator[LocalBackend]:
    backend = from_url(local_backend_url)
    yield backend
    await backend.aclose()


# What it says of itself


async def test_capabilities_are_the_servers(backend: LocalBackend) -> None:
    """The probe reports slots, context and model as the running server has them."""
    found = await backend.probe()
    assert found.models == ("SmolLM2-135M-Instruct",)
    assert (found.max_concurrency, found.context_length) == (8, 1024)
    assert found.prefix_sharing is PrefixSharing.BACKEND
    assert found.constraints >= {"json_schema", "ebnf"}
    assert found.vocabulary.startswith("gguf:SmolLM2-135M-Instruct:")


async def test_nobody_else_can_use_it(backend: LocalBackend) -> None:
    """The server refuses whoever does not know this process's key."""
    await backend.probe()
    assert backend.engine is not None
    async with aiohttp.request("GET", backend.engine.url + "/props") as response:
        assert response.status == 401


# Text and tokens


async def test_answer_ends_by_itself(backend: LocalBackend) -> None:
    """An answer that the model ends has its ids without the end-of-turn token, and usage that counts it."""
    reply = await ask(backend, HELLO, max_tokens=60)
    assert reply.end.finish_reason == "stop"
    assert reply.text == await decode(backend, reply.ids)
    assert reply.end.usage is not None
    assert reply.end.usage.completion == len(reply.ids) + 1 == reply.tokens


async def test_continuation_is_exact_to_the_token(backend: LocalBackend) -> None:
    """Twelve tokens at once are the same as five and then seven, and those five come from the cache."""
    whole = await ask(backend, HELLO, max_tokens=12)
    first = await ask(backend, HELLO, max_tokens=5)
    vocabulary = (await backend.probe()).vocabulary
    segment = Segment(text=first.text, token_ids=first.ids, vocabulary=vocabulary)
    branch = Branch(messages=HELLO.messages, segments=(segment,))
    second = await ask(backend, branch, max_tokens=7)
    assert len(whole.ids) == 12
    assert first.ids + second.ids == whole.ids
    assert first.end.finish_reason == "length"
    assert second.computed <= 2


async def test_words_put_into_its_mouth_are_continued(backend: LocalBackend) -> None:
    """A prefilled turn, without ids, is continued where it stands."""
    whole = await ask(backend, HELLO, max_tokens=8)
    rest = await ask(backend, HELLO.say("Hello! I'm"), max_tokens=4)
    assert whole.text == "Hello! I'm" + rest.text


async def test_characters_of_several_tokens_keep_their_ids(backend: LocalBackend) -> None:
    """Tokens that end within a character are missing from the stream of llama.cpp, and not from ours."""
    branch = Branch.of("Write: 日本語 😀").say("日本語、日本語、")
    reply = await ask(backend, branch, max_tokens=14)
    assert len(reply.ids) > len(reply.text) > 0
    assert "\ufffd" not in reply.text
    assert reply.text == await decode(backend, reply.ids)
    again = Branch(messages=branch.messages, segments=(*branch.segments, Segment(text=reply.text)))
    assert (await ask(backend, again, max_tokens=1)).end.finish_reason in ("length", "stop")


async def test_text_after_a_stop_string_is_the_tail(backend: LocalBackend) -> None:
    """A stop string cuts the text, and the ids hold the tail: the stop string and the rest of its last token."""
    reply = await ask(backend, HELLO, max_tokens=60, stop=("ere to he", "Zanzibar"))
    assert reply.end.finish_reason == "stop"
    assert reply.end.matched == "ere to he"
    assert reply.end.tail == "ere to help"
    assert reply.text + reply.end.tail == await decode(backend, reply.ids)


async def test_start_of_a_stop_string_is_not_lost_at_the_cap(backend: LocalBackend) -> None:
    """Text held back because a stop string might begin there is given out when the cap ends the call."""
    reply = await ask(backend, HELLO, max_tokens=3, stop=("I'm here",))
    assert reply.end.matched is None
    assert reply.text == await decode(backend, reply.ids)
    assert len(reply.ids) == 3


async def test_logprobs(backend: LocalBackend) -> None:
    """Each token has its log-probability and the alternatives, most likely first."""
    reply = await ask(backend, HELLO, max_tokens=3, top_logprobs=4)
    assert "".join(entry.token for entry in reply.logprobs) == reply.text
    for entry in reply.logprobs:
        assert len(entry.top) == 4
        assert entry.top[0] == (entry.token, entry.logprob)
        assert list(entry.top) == sorted(entry.top, key=lambda each: -each[1])


async def test_seed_repeats(backend: LocalBackend) -> None:
    """The same seed draws the same tokens, another one others."""
    warm = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    first, same, other = [
        await ask(backend, HELLO, max_tokens=12, sampling=warm.but(seed=seed)) for seed in (1, 1, 2)
    ]
    assert first.ids == same.ids != other.ids


# Constraints and labels


async def test_schema_gives_a_valid_list(backend: LocalBackend) -> None:
    """A JSON schema makes even this model write a valid list."""
    constraint = Constraint(kind="json_schema", source=FRUITS)
    reply = await ask(backend, Branch.of("List three fruits."), max_tokens=80, constraint=constraint)
    items = json.loads(reply.text)
    assert len(items) == 3
    assert all(isinstance(item, str) and len(item) <= 12 for item in items)


async def test_grammar_and_regex(backend: LocalBackend) -> None:
    """GBNF is always there; a regex where the engine was built with it."""
    yes_no = Branch.of("Is water wet?")
    grammar = Constraint(kind="ebnf", source='root ::= "Yes, indeed" | "No, never"')
    assert (await ask(backend, yes_no, constraint=grammar)).text in ("Yes, indeed", "No, never")
    if "regex" in (await backend.probe()).constraints:
        regex = Constraint(kind="regex", source=r"(yes|no)/[0-9]{2}")
        assert (await ask(backend, yes_no, constraint=regex)).text[-3:-2] == "/"


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", '{"type":"foo"}'), ("json_schema", "{"), ("ebnf", "root ::= ("), ("regex", "((")],
)
async def test_bad_constraint_is_refused(backend: LocalBackend, kind: str, source: str) -> None:
    """A constraint that the engine cannot enforce is an error, never free text."""
    with pytest.raises(RequestRejected):
        await ask(backend, HELLO, max_tokens=8, constraint=Constraint(kind=kind, source=source))  # type: ignore[arg-type]


async def test_labels_have_exact_logprobs(backend: LocalBackend) -> None:
    """A label's log-probability is that of its tokens in turn, however rare they are."""
    branch, labels = Branch.of("Is the sky blue?"), ("Yes", "No", "Absolutely", "Absolutely not", "Zwieback")
    reply = await ask(backend, branch, labels=labels)
    scores = reply.end.label_logprobs
    assert reply.text == ""
    assert scores is not None
    assert set(scores) == set(labels)
    assert all(-math.inf < score < 0 for score in scores.values())
    assert scores["Absolutely not"] < scores["Absolutely"]
    tops = dict((await ask(backend, branch, max_tokens=1, top_logprobs=100)).logprobs[0].top)
    assert scores["No"] == pytest.approx(tops["No"], abs=0.05)


# Prefixes and slots


@pytest.mark.parametrize("siblings", [8, 1], ids=["announced", "unannounced"])
async def test_branches_share_their_prefix(backend: LocalBackend, siblings: int) -> None:
    """Eight branches that arrive together compute their common prompt once, within five percent."""
    shared = Branch.of(f"Case {siblings}. " + RIVER * 25)
    branches = [shared.say(f"{number}. Rivers") for number in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ask(backend, branch, max_tokens=4, group=f"fork {siblings}", siblings=siblings))
            for branch in branches
        ]
    replies = [task.result() for task in tasks]
    prompt = max(reply.computed + reply.cached for reply in replies)
    own = prompt - max(reply.cached for reply in replies)
    least = (prompt - own) + 8 * own
    assert prompt > 250
    assert sum(reply.computed for reply in replies) <= 1.05 * least


async def test_branches_that_go_on_compute_only_what_is_new(backend: LocalBackend) -> None:
    """After a fork each branch finds its own past in the cache."""
    shared = Branch.of("Go on. " + RIVER * 12)
    vocabulary = (await backend.probe()).vocabulary

    async def twice(number: int) -> int:
        start = shared.say(f"{number}. Rivers")
        first = await ask(backend, start, max_tokens=6, group="go on", siblings=4)
        segment = Segment(text=first.text, token_ids=first.ids, vocabulary=vocabulary)
        again = Branch(messages=start.messages, segments=(*start.segments, segment))
        return (await ask(backend, again, max_tokens=2)).computed

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(twice(number)) for number in range(4)]
    assert max(task.result() for task in tasks) <= 4


async def test_more_calls_than_slots(backend: LocalBackend) -> None:
    """Calls beyond the slots wait inside the backend, and all are answered."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(backend, Branch.of(f"Count to {n}."), max_tokens=3)) for n in range(20)]
    assert all(len(task.result().ids) == 3 for task in tasks)


async def test_closing_the_stream_frees_the_slot(backend: LocalBackend) -> None:
    """A stream that is closed early stops the work on the server."""
    async with aclosing(stream(backend, Branch.of("Tell a very long story."), max_tokens=900)) as deltas:
        async for _ in deltas:
            break
        assert any(slot["is_processing"] for slot in await asks_server(backend, "GET", "/slots"))
    async with asyncio.timeout(20):
        while any(slot["is_processing"] for slot in await asks_server(backend, "GET", "/slots")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_cancelled_calls_hold_no_slot(backend: LocalBackend) -> None:
    """Calls that are cancelled, decoding or waiting, leave all slots to those that follow."""
    story = Branch.of("Tell a very long story.")
    tasks = [asyncio.create_task(ask(backend, story, max_tokens=900)) for _ in range(12)]
    await asyncio.sleep(1.0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(ask(backend, HELLO, max_tokens=2))


# Refusals


async def test_context_too_long(backend: LocalBackend) -> None:
    """A prompt that does not fit a slot's context is an error that says so, with status 400."""
    with pytest.raises(ContextTooLong) as caught:
        await ask(backend, Branch.of(RIVER * 150), max_tokens=4)
    assert caught.value.status_code == 400
    assert not caught.value.retryable


async def test_answer_stops_at_the_context(llama_model: Path) -> None:
    """An answer that fills the context ends as one that was cut, and its neighbours go on."""
    endless = Sampling(temperature=0.0, extra={"ignore_eos": True})
    backend = from_url(f"local:{llama_model}?slots=2&context=256")
    try:
        async with asyncio.TaskGroup() as group:
            full = group.create_task(ask(backend, Branch.of(RIVER * 18), sampling=endless))
            other = group.create_task(ask(backend, Branch.of("Go."), sampling=endless, max_tokens=60))
    finally:
        await backend.aclose()
    assert full.result().end.finish_reason == "length"
    usage = full.result().end.usage
    assert usage is not None
    assert usage.prompt + usage.completion in (256, 257)
    assert len(other.result().ids) == 60


async def test_unknown_model_and_pictures_are_refused(backend: LocalBackend) -> None:
    """Another model's name, and content that is not text, are errors that name them."""
    with pytest.raises(ModelNotFound, match="no model 'gpt'"):
        await ask(backend, HELLO, model="gpt")
    picture = Branch.of([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    with pytest.raises(UnsupportedCapability, match="image_url"):
        await ask(backend, picture)


async def test_openai_api_of_the_engine(llama_openai_url: str) -> None:
    """The engine serves OpenAI's API, too: a test server for other backends."""
    async with aiohttp.request("GET", f"{llama_openai_url}/models") as response:
        assert (await response.json())["data"][0]["id"] == "SmolLM2-135M-Instruct"
