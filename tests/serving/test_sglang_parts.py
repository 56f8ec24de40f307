"""The parts of the SGLang backend that need no server: reading replies, sorting reasoning, writing requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from anabranch.orchestrator.backend import Call, Capabilities, Delta, PrefixSharing
from anabranch.orchestrator.branch import Branch, Message, Segment
from anabranch.orchestrator.errors import (
    BackendError,
    BackendUnavailable,
    ContextTooLong,
    InvalidParameter,
    MalformedResponse,
    ModelNotFound,
    RequestRejected,
    UnsupportedCapability,
)
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving.backends.sglang import from_url, measuring, request
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.mending import Halves, Mender
from anabranch.serving.backends.sglang.prompt import prompt_of
from anabranch.serving.backends.sglang.reply import Piece, Reader, Unroller, label_logprobs
from anabranch.serving.backends.sglang.server import Server, inspect
from anabranch.serving.backends.sglang.thinking import Splitter, Tags, overlap, tags_of
from anabranch.serving.backends.sglang.tokenizer import RemoteTokenizer

RID = "0" * 32


def chunk(text: str, ids: list[int], finish: Mapping[str, Any] | None = None, **meta: Any) -> bytes:
    """A chunk of `/generate`, without the figures that do not matter here."""
    meta = {
        "finish_reason": finish,
        "prompt_tokens": 5,
        "completion_tokens": len(ids),
        "cached_tokens": 4,
        **meta,
    }
    return json.dumps({"text": text, "output_ids": ids, "meta_info": meta}).encode()


# What SGLang 0.5.23 sent for "Count: one, two, three," with the stop strings "ve, s" and "ix.".
SO_FAR = [
    chunk(" four", [1876]),
    chunk(" four,", [1876, 28]),
    chunk(" four, fi", [1876, 28, 2531, 28, 2976], {"type": "stop", "matched": "ve, s"}),
]
NEWS = [
    chunk(" four", [1876]),
    chunk(",", [28]),
    chunk(" fi", [2531, 28, 2976], {"type": "stop", "matched": "ve, s"}),
]


def read(reader: Reader, payloads: list[bytes], *, incremental: bool, full: str | None = None) -> list[Delta]:
    """All deltas of a reply."""
    unroller = Unroller(incremental=incremental)
    pieces = [piece for payload in payloads for piece in unroller.feed([payload])]
    deltas = [delta for piece in pieces if (delta := reader.feed(piece)) is not None]
    return [*deltas, *reader.finish(full if reader.stopped else None)]


def reader(*stops: str, splitter: Splitter | None = None) -> Reader:
    """A reader of a plain answer."""
    return Reader(stops, splitter or Splitter(Tags(), begun=True))


@pytest.mark.parametrize(("payloads", "incremental"), [(SO_FAR, False), (NEWS, True)])
def test_both_ways_of_streaming_read_the_same(payloads: list[bytes], incremental: bool) -> None:
    """Chunks that carry all there is so far and chunks that carry what is new give the same deltas."""
    deltas = read(reader("ve, s", "ix."), payloads, incremental=incremental, full=" four, five, six")
    assert [(d.text, d.token_ids) for d in deltas] == [
        (" four", (1876,)),
        (",", (28,)),
        (" fi", (2531, 28, 2976)),
        ("", ()),
    ]
    end = deltas[-1].end
    assert end is not None
    assert (end.matched, end.tail, end.finish_reason) == ("ve, s", "ve, six", "stop")
    assert end.usage is not None
    assert (end.usage.prompt, end.usage.cached) == (5, 4)


def test_of_several_chunks_that_wait_only_the_last_is_read() -> None:
    """When a reader falls behind, chunks that repeat all there is so far are skipped without loss."""
    (piece,) = Unroller(incremental=False).feed(SO_FAR)
    assert (piece.text, piece.ids) == (" four, fi", (1876, 28, 2531, 28, 2976))


def test_chunks_that_came_together_are_one_piece() -> None:
    """When a reader falls behind, chunks with what is new are joined, and say the same as one by one."""
    (piece,) = Unroller(incremental=True).feed(NEWS)
    (so_far,) = Unroller(incremental=False).feed(SO_FAR)
    assert (piece.text, piece.ids, piece.finish) == (so_far.text, so_far.ids, so_far.finish)


def test_what_may_become_a_stop_string_is_held_back_with_its_ids() -> None:
    """No delta holds the beginning of a stop string, and text and ids are always let go of together."""
    deltas = read(
        reader("\n\n"),
        [
            chunk("a\n", [1]),
            chunk("b", [2]),
            chunk("\n", [3]),
            chunk("", [4], {"type": "stop", "matched": "\n\n"}),
        ],
        incremental=True,
        full="a\nb\n\n",
    )
    assert [(d.text, d.token_ids) for d in deltas[:-1]] == [("a\nb", (1, 2)), ("", (3, 4))]
    assert deltas[-1].end is not None
    assert deltas[-1].end.tail == "\n\n"


def test_the_earliest_of_several_stop_strings_counts() -> None:
    """Where one token brings two stop strings, the text ends at the first, not at the one the server names."""
    deltas = read(
        reader("\n\n", "."),
        [chunk("end.", [1, 2], {"type": "stop", "matched": "\n\n"})],
        incremental=True,
        full="end.\n\n",
    )
    end = deltas[-1].end
    assert end is not None
    assert ("".join(d.text for d in deltas), end.matched, end.tail) == ("end", ".", ".\n\n")


def test_the_token_that_only_says_the_end_is_left_out() -> None:
    """The end-of-turn token is no text, so it is not among the ids."""
    deltas = read(reader(), [chunk("Paris.", [7042, 30, 2], {"type": "stop", "matched": 2})], incremental=True)
    assert [d.token_ids for d in deltas] == [(7042, 30), ()]
    assert sum(d.tokens for d in deltas) == 2


def test_half_a_character_is_left_to_whoever_continues() -> None:
    """A reply that is capped within a character gives its ids, and not the mark of a broken character."""
    capped = reader()
    deltas = read(
        capped, [chunk("x", [1]), chunk("\ufffd", [2], {"type": "length", "length": 2})], incremental=True
    )
    assert [(d.text, d.token_ids) for d in deltas[:-1]] == [("x", (1,)), ("", (2,))]
    assert capped.halved


def test_each_position_brings_its_logprobs_once() -> None:
    """Logprobs come with their tokens, also where the server repeats them in every chunk."""
    first, second = [-0.5, 1, "a"], [-0.7, 2, "b"]
    tops = [[first, [-1.5, 9, "z"]], [second, [-1.7, 8, "y"]]]
    deltas = read(
        reader(),
        [
            chunk("a", [1], output_token_logprobs=[first], output_top_logprobs=tops[:1]),
            chunk(
                "ab",
                [1, 2],
                {"type": "length"},
                output_token_logprobs=[first, second],
                output_top_logprobs=tops,
            ),
        ],
        incremental=False,
    )
    assert [[(lp.token, lp.logprob, lp.top[1]) for lp in d.logprobs] for d in deltas] == [
        [("a", -0.5, ("z", -1.5))],
        [("b", -0.7, ("y", -1.7))],
        [],
    ]


def test_speculation_figures_are_read_where_there_are_any() -> None:
    """Token-level speculative decoding is reported when the server did some."""
    spec = {"spec_verify_ct": 4, "spec_accept_length": 2.5, "spec_accept_rate": 0.5}
    (*_, last) = read(reader(), [chunk("a", [1], {"type": "length"}, **spec)], incremental=True)
    assert last.end is not None
    assert last.end.spec is not None
    assert (last.end.spec.verify_count, last.end.spec.accept_length) == (4, 2.5)


@pytest.mark.parametrize(
    ("payload", "kind", "status"),
    [
        (b'{"error":{"message":"longer than the model\'s context length","code":400}}', ContextTooLong, 400),
        (b'{"text": "cut in the mid', MalformedResponse, 502),
        (b'{"text": "no ids"}', MalformedResponse, 502),
        (b"[]", MalformedResponse, 502),
        (chunk("", [], {"type": "abort", "message": "bad grammar", "status_code": 400}), RequestRejected, 400),
        (chunk("", [], {"type": "abort", "message": "Abort in waiting queue"}), BackendUnavailable, 502),
    ],
)
def test_errors_within_a_stream_become_errors(payload: bytes, kind: type[BackendError], status: int) -> None:
    """An error object, nonsense, and an abort that we did not ask for are errors, with the server's status."""
    with pytest.raises(kind) as caught:
        read(reader(), [payload], incremental=True)
    assert caught.value.status_code == status


def test_a_score_without_figures_is_malformed() -> None:
    """Labels are never scored by a guess."""
    with pytest.raises(MalformedResponse):
        label_logprobs(["yes"], {"meta_info": {"finish_reason": {"type": "length"}}})


@pytest.mark.parametrize(
    ("pieces", "reasoning", "answer"),
    [
        (["<think>", "hm\n", "</think>", "\nParis"], "hm\n", "\nParis"),
        (["\n", "\n<think>hm</think>Paris"], "hm", "\n\nParis"),
        (["Paris"], "", "Paris"),
        (["I <think> so"], "", "I <think> so"),
        (["<think>never closed"], "never closed", ""),
        (["<think>a</think>b<think>c</think>"], "a", "b<think>c</think>"),
    ],
)
def test_reasoning_is_told_from_the_answer(pieces: list[str], reasoning: str, answer: str) -> None:
    """A turn that opens with the tag is reasoning up to the closing tag; all the rest is the answer."""
    splitter = Splitter(Tags())
    sorted_ = [splitter.feed(piece) for piece in pieces]
    assert ("".join(r for r, _ in sorted_), "".join(a for _, a in sorted_)) == (reasoning, answer)


def test_reasoning_may_have_been_opened_before() -> None:
    """Where the template or an earlier piece of the turn opened it, reasoning begins at once."""
    assert Splitter(Tags(), opened=True).feed("hm</think>Paris") == ("hm", "Paris")
    assert Splitter(Tags(), begun=True).feed("<think>hm") == ("", "<think>hm")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tags_may_come_in_pieces(size: int) -> None:
    """However a reply is cut into chunks, tags are found, and no part of one is shown."""
    text = "<think>hm, <thin</think>Paris </thin"
    payloads = [chunk(text[at : at + size], [at]) for at in range(0, len(text), size)]
    payloads.append(chunk("", [], {"type": "length"}))
    deltas = read(reader(splitter=Splitter(Tags())), payloads, incremental=True)
    assert "".join(d.reasoning for d in deltas) == "hm, <thin"
    assert "".join(d.text for d in deltas) == "Paris </thin"


def test_other_parsers_have_other_tags() -> None:
    """The tags follow the server's reasoning parser."""
    assert tags_of("mistral").start == "[THINK]"
    assert tags_of("qwen3") == tags_of(None) == Tags()


@pytest.mark.parametrize(
    ("text", "expected", "size"),
    [
        ("a\n", ("\n\n",), 1),
        ("a\n\n", ("\n\n",), 1),
        ("abc", ("cde", "bcd"), 2),
        ("abc", (), 0),
        ("", ("a",), 0),
    ],
)
def test_overlap_is_what_may_still_become_a_string(text: str, expected: tuple[str, ...], size: int) -> None:
    """The longest end of the text that begins one of the strings, without being all of it."""
    assert overlap(text, expected) == size


CAPABILITIES = Capabilities(models=("m", "law"), vocabulary="v", context_length=100)


class Words(RemoteTokenizer):
    """A tokenizer without a server: an id is a word's place in a list that grows. Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(Connection("http://127.0.0.1:1"))
        self.words: list[str] = []
        self.asked = 0
        self.opening = ""

    async def _tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        messages = " ".join(f"<{m['role']}> {m['content']}" for m in body.get("messages", ()))
        text = f"{messages} <assistant> {self.opening}" if messages else body["prompt"]
        return tuple(self._id(word) for word in text.split())

    async def decode(self, ids: Any, *, special: bool = False) -> str:
        return " ".join(self.words[i] for i in ids)

    def _id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


def server(tokenizer: RemoteTokenizer | None = None, **changes: Any) -> Server:
    """A server that is not there."""
    known = Server(
        workers=(), tokenizer=tokenizer or Words(), capabilities=CAPABILITIES, adapters={"law": "law"}
    )
    return replace(known, **changes)


def call(branch: Branch | None = None, **fields: Any) -> Call:
    """A call with the fields that matter."""
    return Call(rid=RID, branch=branch or Branch.of("Hi"), **fields)


def test_the_request_says_all_that_the_call_says() -> None:
    """Caps, stop strings, constraint, sampling and further parameters each go where SGLang looks for them."""
    asked = call(
        max_tokens=7,
        stop=("\n",),
        constraint=Constraint(kind="regex", source="a+"),
        sampling=Sampling(temperature=0.5, seed=3, extra={"min_new_tokens": 2, "extra_key": "k", "tools": []}),
        top_logprobs=2,
        model="law",
    )
    body = request.build(asked, (1, 2), server(), opened=False)
    assert body["sampling_params"] == {
        "max_new_tokens": 7,
        "stop": ["\n"],
        "regex": "a+",
        "temperature": 0.5,
        "sampling_seed": 3,
        "min_new_tokens": 2,
    }
    assert (body["rid"], body["input_ids"], body["extra_key"], body["lora_path"]) == (RID, [1, 2], "k", "law")
    assert (body["return_logprob"], body["top_logprobs_num"], body["logprob_start_len"]) == (True, 2, -1)
    assert request.template(asked.sampling) == {"tools": []}
    assert "priority" not in body


def test_no_cap_means_no_cap() -> None:
    """Without `max_tokens` the cap is sent as null: left out, SGLang would stop after 128 tokens."""
    params = request.build(call(), (1,), server(), opened=False)["sampling_params"]
    assert params == {"max_new_tokens": None}


def test_priority_is_sent_only_where_it_counts() -> None:
    """A server without priority scheduling is not sent a priority."""
    with_priority = server(capabilities=replace(CAPABILITIES, priority=True))
    assert request.build(call(priority=5), (1,), with_priority, opened=False)["priority"] == 5
    assert "priority" not in request.build(call(priority=5), (1,), server(), opened=False)


def test_a_constraint_waits_for_the_end_of_reasoning() -> None:
    """Within reasoning, a server with a reasoning parser is asked to constrain only what follows."""
    asked = call(constraint=Constraint(kind="regex", source="a"))
    assert request.build(asked, (1,), server(parser=True), opened=True)["require_reasoning"] is True
    assert "require_reasoning" not in request.build(asked, (1,), server(parser=True), opened=False)
    assert "require_reasoning" not in request.build(asked, (1,), server(), opened=True)


def test_models_and_adapters_are_known_by_name() -> None:
    """A LoRA adapter is named alone or behind its base and a colon; an unknown name is refused here."""
    known = server()
    assert [known.adapter(name) for name in (None, "m", "law", "m:tax")] == [None, None, "law", "tax"]
    with pytest.raises(ModelNotFound, match="m, law"):
        known.adapter("other")


def test_images_are_refused_with_a_way_out() -> None:
    """Content that is not text is refused, never dropped."""
    image = Message(role="user", content=({"type": "image_url", "image_url": {"url": "data:,"}},))
    with pytest.raises(UnsupportedCapability, match="/v1"):
        request.messages(Branch(messages=(image,)))


async def test_a_turn_is_continued_from_its_own_ids() -> None:
    """Ids of the same vocabulary are used as they are; other text is tokenized, that piece alone."""
    words = Words()
    branch = replace(
        Branch.of("Hi"),
        segments=(
            Segment(text="ignored", token_ids=(90, 91), vocabulary="v"),
            Segment(text="b c", token_ids=(92,), vocabulary="another"),
        ),
    )
    prompt = await prompt_of(call(branch), server(words))
    text = await words.text("b c")
    assert prompt.ids == (*await words.chat([{"role": "user", "content": "Hi"}], {}), 90, 91, *text)


async def test_whether_reasoning_is_open_is_read_off_the_turn() -> None:
    """The template, the tags in the text, and the closing token among the ids tell where a turn stands."""
    words = Words()
    words.opening = "<think>"
    hi = Branch.of("Hi")
    (closing,) = await words.text("</think>")
    cut = Segment(text="", reasoning="hm", token_ids=(91, 92), vocabulary="v")
    closed = Segment(text="Paris", reasoning="hm", token_ids=(91, closing, 92), vocabulary="v")
    foreign = Segment(text="Paris", reasoning="hm")
    known = server(words)

    async def opened(*segments: Segment) -> bool:
        return (await prompt_of(call(replace(hi, segments=segments)), known)).opened

    turns = ((), (cut,), (closed,), (foreign,))
    assert [await opened(*turn) for turn in turns] == [True, True, False, False]
    assert not await opened(Segment(text="x </think> y"))


def test_reasoning_of_another_tokenizer_is_put_back_within_tags() -> None:
    """A turn that another server wrote is given to this model as it would have written it."""
    segment = Segment(text="Paris", reasoning="hm")
    assert request.spoken(segment, Tags(), opened=False) == "<think>hm</think>Paris"
    assert request.spoken(segment, Tags(), opened=True) == "hm</think>Paris"


async def test_siblings_ask_the_tokenizer_once() -> None:
    """The same conversation, asked for by many at once, goes to the server once, also if the first one gives up."""
    words = Words()
    messages = [{"role": "user", "content": "Hi"}]
    first = asyncio.create_task(words.chat(messages, {}))
    others = [asyncio.create_task(words.chat(messages, {})) for _ in range(8)]
    await asyncio.sleep(0)
    first.cancel()
    assert len({await task for task in others}) == 1
    assert words.asked == 2


async def test_a_tokenizer_that_adds_a_blank_is_kept_from_it() -> None:
    """SentencePiece puts a blank before the first word of a text; within a turn there is none."""

    class Spaced(Words):
        async def _tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
            return tuple(self._id(piece) for piece in ("▁" + body["prompt"]))

    spaced = Spaced()
    assert await spaced.decode(await spaced.text("ab")) == "a b"


async def test_a_character_cut_in_two_is_made_whole() -> None:
    """The reply that completes a character has all of it, although the server leaves it out of the text."""

    class Bytes(Words):
        async def decode(self, ids: Any, *, special: bool = False) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    whole = "ab😀cd".encode()
    halves = Halves()
    halves.remember(tuple(whole[:4]))
    mender = Mender(Bytes(), halves.lead(tuple(whole[:4])), special=False)
    pieces = [
        Piece("", (whole[4],), (), None, {}),
        Piece("", (whole[5],), (), None, {}),
        Piece("c", (99,), (), None, {}),
    ]
    assert [(await mender.mend(piece)).text for piece in [*pieces, Piece("d", (100,), (), None, {})]] == [
        "",
        "",
        "😀c",
        "d",
    ]
    assert await mender.text(tuple(whole[4:])) == "😀cd"
    assert halves.lead((1, 2, 3)) == ()


class Answers(Connection):
    """A server that answers GETs as listed, with 404 otherwise."""

    def __init__(self, url: str, answers: Mapping[str, Any]) -> None:
        super().__init__(url)
        self._answers = answers

    async def get(self, path: str) -> Any:
        if path not in self._answers:
            raise ModelNotFound("Not Found")
        return self._answers[path]

    async def post(self, path: str, body: Any, *, headers: Any = None) -> Any:
        return {"tokens": [1], "text": [""] * len(body.get("tokens", ()))}


WORKER = {
    "/server_info": {
        "grammar_backend": "xgrammar",
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
    },
    "/v1/models": {"data": [{"id": "m", "max_model_len": 100}]},
}
# What the router 0.3.2 answers.
ROUTER = {
    "/get_server_info": {"router_manager": True, "routers_count": 1, "workers_count": 2},
    "/workers": {
        "workers": [{"url": "http://w1", "is_healthy": True}, {"url": "http://w2", "is_healthy": True}]
    },
}


async def test_behind_a_router_the_workers_are_asked() -> None:
    """A router is seen as such: its workers tell what they can do, and one sibling goes ahead of the others."""
    found = await inspect(Answers("http://router", ROUTER), lambda url: Answers(url, WORKER))
    assert [worker.url for worker in found.workers] == ["http://w1", "http://w2"]
    assert found.capabilities.max_concurrency == 2 * 48
    assert found.capabilities.prefix_sharing is PrefixSharing.LEADER


async def test_with_its_cache_off_a_server_shares_nothing() -> None:
    """Then nobody waits for a leader."""
    found = await inspect(Answers("http://one", WORKER), lambda url: Answers(url, {}))
    assert found.capabilities.prefix_sharing is PrefixSharing.LEADER
    without = {**WORKER, "/server_info": {"disable_radix_cache": True}}
    found = await inspect(Answers("http://one", without), lambda url: Answers(url, {}))
    assert found.capabilities.prefix_sharing is PrefixSharing.NONE


@pytest.mark.parametrize(
    ("about", "measures"),
    [
        ({"embedding": {"task": "embed"}}, {"embedding"}),
        ({"embedding": {"task": "classify"}}, {"reward"}),
        ({"embedding": {"task": "none"}}, {"likelihood"}),
        ({"embedding": {"task": "something new"}}, set()),
        ({}, {"likelihood"}),
        (None, {"likelihood"}),
    ],
)
async def test_what_a_server_measures_depends_on_its_model(about: Any, measures: set[str]) -> None:
    """One that embeds or rewards writes no text, so it has no constraints, labels or log-probabilities either."""
    answers = WORKER if about is None else {**WORKER, "/model_info": about}
    found = (await inspect(Answers("http://one", answers), lambda url: Answers(url, {}))).capabilities
    assert found.measures == measures
    writes = measures == {"likelihood"}
    assert (found.labels, bool(found.constraints), found.top_logprobs > 0) == (writes, writes, writes)


@pytest.mark.parametrize(
    ("measure", "answer"),
    [
        ("embedding", {"embedding": [], "meta_info": {}}),
        ("embedding", {"error": "no"}),
        ("reward", {"embedding": ["high"], "meta_info": {}}),
        ("likelihood", {"meta_info": {"input_token_logprobs": [[None, 1, None]]}}),
        ("likelihood", {"meta_info": {}}),
        ("likelihood", None),
    ],
)
def test_an_answer_without_the_numbers_is_an_error(measure: Any, answer: Any) -> None:
    """It names what is missing."""
    with pytest.raises(MalformedResponse, match=f"no {measure} in the answer"):
        measuring.read(call(Branch.of("q"), measure=measure), answer)


async def test_another_kind_of_server_is_refused_with_a_way_out() -> None:
    """A server that is no SGLang is told apart, and the address to use instead is named."""
    with pytest.raises(UnsupportedCapability, match="http://other/v1"):
        await inspect(Answers("http://other", {}), lambda url: Answers(url, {}))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sglang://gpu1:31000", "http://gpu1:31000"),
        ("sglang://gpu1", "http://gpu1:30000"),
        ("sglang+https://api.example.org/llm/", "https://api.example.org/llm"),
        ("sglang://[::1]:31000", "http://[::1]:31000"),
        ("sglang://gpu1?key=K", "http://gpu1:30000"),
    ],
)
async def test_addresses(url: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheme names the backend; the port is SGLang's own by default; where the key is from is not part of its name."""
    monkeypatch.setenv("K", "secret")
    backend = from_url(url)
    assert (backend.name, backend._entry.url) == (url.partition("?")[0], address)


@pytest.mark.parametrize(
    "url", ["sglang://", "sglang://h:port", "sglang://h?api_key=x", "sglang://u:p@h", "http://h"]
)
async def test_bad_addresses_are_refused(url: str) -> None:
    """A key has no place in an address, as addresses are shown and logged."""
    with pytest.raises(InvalidParameter, match="ANABRANCH_API_KEY"):
        from_url(url)
