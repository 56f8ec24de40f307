"""The SGLang backend against a real SGLang on the CPU."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.orchestrator.backend import Call, Delta, End, PrefixSharing, TokenLogprob
from anabranch.orchestrator.branch import Branch, Segment
from anabranch.orchestrator.errors import (
    BackendUnavailable,
    ContextTooLong,
    ModelNotFound,
    RequestRejected,
    UnsupportedCapability,
)
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving import launch
from anabranch.serving.backends.sglang import SGLangBackend, from_url
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.tokenizer import RemoteTokenizer
from sglang_server import require_environment

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=0)
RIVERS = Branch.of("Tell me about rivers.")
LONG = Branch.of("Count from one to one thousand, in words.").say("one, two, three, four, five, six, seven,")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """All that one call gave."""

    deltas: tuple[Delta, ...]
    end: End
    vocabulary: str

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for delta in self.deltas for i in delta.token_ids)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(lp for delta in self.deltas for lp in delta.logprobs)

    def after(self, branch: Branch) -> Branch:
        """The branch continued by this reply."""
        segment = Segment(text=self.text + self.end.tail, token_ids=self.ids, vocabulary=self.vocabulary)
        return replace(branch, segments=(*branch.segments, segment))


class Client:
    """A backend, and a tokenizer to check it by."""

    def __init__(self, url: str) -> None:
        self.backend = from_url(url)
        self.connection = Connection(url.replace("sglang://", "http://"))
        self.tokenizer = RemoteTokenizer(self.connection)

    async def ask(self, branch: Branch, **fields: Any) -> Reply:
        """One call, greedy unless said otherwise."""
        fields = {"sampling": GREEDY, **fields}
        stream = self.backend.stream(Call(rid=uuid.uuid4().hex, branch=branch, **fields))
        deltas = [delta async for delta in stream]
        assert [delta.end is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        end = deltas[-1].end
        assert end is not None
        return Reply(deltas=tuple(deltas), end=end, vocabulary=(await self.backend.probe()).vocabulary)

    async def counter(self, name: str) -> float:
        """A figure among the server's metrics."""
        async with self.connection._answer("GET", "/metrics") as response:
            lines = re.findall(rf"^sglang:{name}{{[^}}]*}} (\S+)$", await response.text(), re.MULTILINE)
        return sum(float(line) for line in lines)


@pytest.fixture
async def client(sglang_url: str) -> AsyncIterator[Client]:
    client = Client(sglang_url)
    yield client
    await client.backend.aclose()
    await client.connection.aclose()


async def test_the_server_says_what_it_can_do(client: Client) -> None:
    """Models, context, constraints and prefix sharing are read from the server."""
    found = await client.backend.probe()
    assert found.models == ("smollm2",)
    assert found.context_length == 8192
    assert found.prefix_sharing is PrefixSharing.LEADER
    assert found.constraints == {"json_schema", "regex", "ebnf"}
    assert found.vocabulary
    assert not found.priority
    assert found.max_concurrency == 128


async def test_an_answer_comes_with_its_figures(client: Client) -> None:
    """A short answer ends by itself, with what the server counted; ids and text say the same."""
    reply = await client.ask(Branch.of("What is the capital of France?"), max_tokens=40)
    assert "Paris" in reply.text
    assert (reply.end.finish_reason, reply.end.matched, reply.end.tail) == ("stop", None, "")
    assert reply.end.usage is not None
    assert reply.end.usage.completion == len(reply.ids) + 1  # the end-of-turn token
    assert reply.end.queued_s is not None
    assert await client.tokenizer.decode(reply.ids) == reply.text


async def test_without_a_cap_the_context_is_the_cap(client: Client) -> None:
    """A call without `max_tokens` goes on past SGLang's default of 128 tokens."""
    reply = await client.ask(
        RIVERS, sampling=GREEDY.but(extra={"min_new_tokens": 140, "stop_token_ids": [198]})
    )
    assert reply.end.usage is not None
    assert reply.end.usage.completion > 128


async def test_a_continued_branch_is_token_exact(client: Client) -> None:
    """Five tokens and then seven are the same as twelve, and all but the last come from the cache."""
    whole = await client.ask(RIVERS, max_tokens=12)
    first = await client.ask(RIVERS, max_tokens=5)
    rest = await client.ask(first.after(RIVERS), max_tokens=7)
    assert (*first.ids, *rest.ids) == whole.ids
    assert first.text + rest.text == whole.text
    assert rest.end.usage is not None
    assert first.end.usage is not None
    assert rest.end.usage.prompt == first.end.usage.prompt + 5
    assert rest.end.usage.cached == rest.end.usage.prompt - 1


@pytest.mark.parametrize(
    "stop",
    [("ve, s", "ix."), ("fo",), (" five", ",", "six"), ("\n\n",), (" nine, ten",), ("e",), (", ", "x, ")],
)
async def test_text_ends_at_a_stop_string_and_the_ids_say_the_rest(
    client: Client, stop: tuple[str, ...]
) -> None:
    """However a stop string lies across tokens, no text holds it, and text and tail are what the ids decode to."""
    counting = Branch.of("Count to ten.").say("Count: one, two, three,")
    reply = await client.ask(counting, max_tokens=24, stop=stop)
    assert not any(string in reply.text for string in stop)
    assert await client.tokenizer.decode(reply.ids) == reply.text + reply.end.tail
    if reply.end.finish_reason == "stop" and reply.end.matched is not None:
        assert reply.end.matched in stop
        assert reply.end.tail.startswith(reply.end.matched)
    ids: tuple[int, ...] = ()
    text = ""
    for delta in reply.deltas[:-2]:  # up to the last one with text, which may end as a stop string begins
        ids, text = (*ids, *delta.token_ids), text + delta.text
        assert await client.tokenizer.decode(ids) == text
        assert not any(text.endswith(string[:size]) for string in stop for size in range(1, len(string)))


async def test_a_branch_goes_on_behind_its_stop_string(client: Client) -> None:
    """What a stop string cut off is kept as ids, so that going on gives what there would have been without it."""
    counting = Branch.of("Count to ten.").say("Count: one, two, three,")
    whole = await client.ask(counting, max_tokens=8)
    first = await client.ask(counting, max_tokens=8, stop=("fo",))
    assert (first.end.matched, first.end.tail) == ("fo", "four")
    rest = await client.ask(first.after(counting), max_tokens=8 - len(first.ids))
    assert (*first.ids, *rest.ids) == whole.ids


OUTLINE = {
    "type": "object",
    "properties": {
        "points": {
            "type": "array",
            "items": {"type": "string", "maxLength": 24},
            "minItems": 3,
            "maxItems": 4,
        }
    },
    "required": ["points"],
    "additionalProperties": False,
}


async def test_a_schema_makes_a_small_model_write_an_outline(client: Client) -> None:
    """Constrained by a JSON schema, even a model of 135M parameters gives a valid outline."""
    constraint = Constraint(kind="json_schema", source=json.dumps(OUTLINE))
    reply = await client.ask(RIVERS, max_tokens=200, constraint=constraint)
    assert reply.end.finish_reason == "stop"
    assert 3 <= len(json.loads(reply.text)["points"]) <= 4


async def test_a_bad_constraint_is_the_callers_mistake(client: Client) -> None:
    """A grammar that the server cannot compile is a rejected request, with what is wrong with it."""
    with pytest.raises(RequestRejected, match="grammar") as caught:
        await client.ask(RIVERS, max_tokens=5, constraint=Constraint(kind="regex", source="(a"))
    assert caught.value.status_code == 400


async def test_labels_are_scored_without_writing(client: Client) -> None:
    """Labels get the log-probabilities that the model gives their first tokens, and no token is written."""
    branch = Branch.of("What is the capital of France? One word.").say("The capital of France is")
    scored = await client.ask(branch, labels=(" Paris", " London", " banana"))
    (first,) = (await client.ask(branch, max_tokens=1, top_logprobs=20)).logprobs
    assert scored.end.label_logprobs is not None
    assert scored.end.label_logprobs[" Paris"] == pytest.approx(dict(first.top)[" Paris"], abs=0.02)
    assert scored.end.label_logprobs[" Paris"] > scored.end.label_logprobs[" banana"]
    assert scored.text == ""
    assert scored.end.usage is not None
    assert scored.end.usage.completion == 0


async def test_labels_that_begin_alike_are_refused(client: Client) -> None:
    """Labels that share their first token cannot be told apart in one call."""
    with pytest.raises(UnsupportedCapability, match="first token"):
        await client.ask(RIVERS, labels=(" Paris one", " Paris two"))


async def test_top_logprobs_come_with_the_tokens(client: Client) -> None:
    """Each token comes with its alternatives, most likely first; greedily, it is the first of them."""
    reply = await client.ask(RIVERS, max_tokens=6, top_logprobs=3)
    assert "".join(lp.token for lp in reply.logprobs) == reply.text
    for lp in reply.logprobs:
        assert lp.top[0] == (lp.token, lp.logprob)
        assert [value for _, value in lp.top] == sorted((value for _, value in lp.top), reverse=True)
        assert len(lp.top) == 3


async def test_characters_of_several_tokens_come_whole(client: Client) -> None:
    """An emoji that takes three tokens is never shown in part, and its ids come with it."""
    constraint = Constraint(kind="regex", source="(😀é){3}")
    reply = await client.ask(RIVERS, max_tokens=40, constraint=constraint)
    assert [delta.text for delta in reply.deltas if delta.text] == ["😀", "é"] * 3
    assert [len(delta.token_ids) for delta in reply.deltas if delta.text] == [3, 2] * 3


async def test_a_character_cut_by_the_cap_is_rejoined(client: Client) -> None:
    """Replies that share a character give it once, whole, in the one that completes it; nothing is lost."""
    emoji = await client.tokenizer.text("😀")
    assert len(emoji) == 3
    branch, replies = RIVERS.say("Look:"), []
    for forced in emoji:
        bias = GREEDY.but(extra={"logit_bias": {str(forced): 1000.0}})
        replies.append(await client.ask(branch, max_tokens=1, sampling=bias))
        branch = replies[-1].after(branch)
    replies.append(await client.ask(branch, max_tokens=3))
    assert tuple(i for reply in replies[:3] for i in reply.ids) == emoji
    assert [reply.text for reply in replies[:3]] == ["", "", "😀"]
    assert [reply.end.tail for reply in replies] == [""] * 4
    ids = tuple(i for reply in replies for i in reply.ids)
    assert await client.tokenizer.decode(ids) == "".join(reply.text for reply in replies)


async def test_a_completed_character_is_followed_without_a_gap(client: Client) -> None:
    """The reply that completes a character goes on behind it with all that the model wrote."""
    emoji = await client.tokenizer.text("😀")
    start = RIVERS.say("Look:")
    half = GREEDY.but(extra={"logit_bias": {str(emoji[0]): 1000.0}})
    first = await client.ask(start, max_tokens=1, sampling=half)
    pair = GREEDY.but(extra={"logit_bias": {str(emoji[1]): 1000.0}})
    second = await client.ask(first.after(start), max_tokens=1, sampling=pair)
    rest = await client.ask(second.after(first.after(start)), max_tokens=6)
    ids = (*first.ids, *second.ids, *rest.ids)
    assert (first.text, second.text) == ("", "")
    assert rest.text == await client.tokenizer.decode(ids)


async def test_closing_a_stream_ends_the_work_on_the_server(client: Client) -> None:
    """A stream that is closed early is aborted: the server counts it, and runs nothing any more."""
    before = await client.counter("num_aborted_requests_total")
    call = Call(
        rid=uuid.uuid4().hex, branch=LONG, max_tokens=4000, sampling=GREEDY.but(extra={"ignore_eos": True})
    )
    async with aclosing(client.backend.stream(call)) as stream:
        async for delta in stream:
            if delta.token_ids:
                break
    await until(lambda: client.counter("num_aborted_requests_total"), lambda now: now > before)
    await until(lambda: client.counter("num_running_reqs"), lambda now: now == 0)


async def test_cancelling_leaves_nothing_behind(client: Client) -> None:
    """Cancelled at whatever point, a call leaves no task, and the server counts an abort."""
    await client.backend.probe()
    before = await client.counter("num_aborted_requests_total")
    sampling = GREEDY.but(extra={"ignore_eos": True})
    for branch, seconds in ((RIVERS, 0.0), (LONG, 0.05), (LONG, 1.5)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await client.ask(branch, max_tokens=4000, sampling=sampling)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    await until(lambda: client.counter("num_aborted_requests_total"), lambda now: now > before)
    await until(lambda: client.counter("num_running_reqs"), lambda now: now == 0)


async def test_too_long_a_prompt_is_said_so(client: Client) -> None:
    """A prompt beyond the context is an error of its own kind, with the server's status and figures."""
    with pytest.raises(ContextTooLong, match="8192") as caught:
        await client.ask(Branch.of("word " * 9000), max_tokens=5)
    assert caught.value.status_code == 400
    assert not caught.value.retryable


async def test_too_long_an_answer_is_said_so(client: Client) -> None:
    """A cap beyond the context is refused, not cut."""
    with pytest.raises(ContextTooLong):
        await client.ask(RIVERS, max_tokens=9000)


async def test_a_bad_parameter_is_named(client: Client) -> None:
    """A parameter that the server does not know is refused, with its name."""
    with pytest.raises(RequestRejected, match="no_such_thing"):
        await client.ask(RIVERS, max_tokens=2, sampling=Sampling(extra={"no_such_thing": 1}))


async def test_an_unknown_model_is_refused(client: Client) -> None:
    """SGLang answers for any model's name; we do not."""
    with pytest.raises(ModelNotFound, match="smollm2"):
        await client.ask(RIVERS, max_tokens=2, model="other")


async def test_ids_of_another_vocabulary_are_not_used(client: Client) -> None:
    """A segment of another tokenizer goes in as text."""
    foreign = Segment(text="Rivers are", token_ids=(1, 2, 3), vocabulary="another")
    own = await client.ask(replace(RIVERS, segments=(foreign,)), max_tokens=3)
    said = await client.ask(RIVERS.say("Rivers are"), max_tokens=3)
    assert own.ids == said.ids
    assert own.end.usage is not None
    assert said.end.usage is not None
    assert own.end.usage.prompt == said.end.usage.prompt


async def test_template_fields_reach_the_chat_template(client: Client) -> None:
    """What is meant for the chat template goes there, and is no sampling parameter."""
    sampling = GREEDY.but(extra={"chat_template_kwargs": {"enable_thinking": False}})
    assert (await client.ask(RIVERS, max_tokens=3, sampling=sampling)).ids


async def test_no_server_is_said_at_once() -> None:
    """Where nobody listens, the error says what to do, and may be retried."""
    backend = SGLangBackend(f"http://127.0.0.1:{launch.free_port()}")
    with pytest.raises(BackendUnavailable, match=r"\(Connection refused\); `anabranch launch`") as caught:
        await backend.probe()
    assert caught.value.retryable
    await backend.aclose()


@pytest.fixture
def mortal_server(tmp_path: Path) -> launch.ServerProcess:
    """A server of our own, to be killed: the small random model, streaming all there is so far with each chunk."""
    require_environment()
    port = launch.free_port()
    command = launch.command("cpu", model="tiny", port=port)
    command.remove("--incremental-streaming-output")
    return launch.ServerProcess(command, url=f"http://127.0.0.1:{port}", log=tmp_path / "log")


async def test_a_server_that_is_killed_in_the_middle_is_noticed(mortal_server: launch.ServerProcess) -> None:
    """A server that is killed during a stream ends it at once with a retryable error, and leaves no process."""
    async with mortal_server:
        client = Client(mortal_server.url.replace("http://", "sglang://"))
        whole = await client.ask(RIVERS, max_tokens=12)
        first = await client.ask(RIVERS, max_tokens=5)
        assert (*first.ids, *(await client.ask(first.after(RIVERS), max_tokens=7)).ids) == whole.ids
        sampling = Sampling(extra={"ignore_eos": True})
        call = Call(rid=uuid.uuid4().hex, branch=RIVERS, max_tokens=6000, sampling=sampling)
        group = mortal_server.pid

        async def kill_after_some() -> None:
            got = 0
            async for delta in client.backend.stream(call):
                got += len(delta.token_ids)
                if got > 5:
                    os.kill(group, signal.SIGKILL)

        with pytest.raises(BackendUnavailable) as caught:
            await asyncio.wait_for(kill_after_some(), 30)
        assert caught.value.retryable
        with pytest.raises(BackendUnavailable):
            await client.ask(RIVERS, max_tokens=2)
        await client.backend.aclose()
        await client.connection.aclose()
    assert not members(group)


def members(group: int) -> list[int]:
    """The processes of a process group that are alive."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry))
    return found


async def until(figure: Callable[[], Awaitable[float]], reached: Callable[[float], bool]) -> None:
    """Wait until a figure of the server is as it should be."""
    deadline = time.monotonic() + 60
    while not reached(now := await figure()):
        assert time.monotonic() < deadline, f"still {now}"
        await asyncio.sleep(0.3)
