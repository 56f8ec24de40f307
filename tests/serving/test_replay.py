"""The backend `replay:`: which trace a call gets, what it streams, where it is cut, how a branch goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Branch, Generation, Orchestrator, Run, Sampling
from anabranch.orchestrator.backend import Call, Delta, End
from anabranch.orchestrator.errors import InvalidParameter, RequestRejected
from anabranch.orchestrator.registry import open_backend
from anabranch.serving.backends.replay import from_url
from anabranch.serving.backends.replay.playing import Player
from anabranch.serving.backends.replay.pool import Pool
from anabranch.serving.recordings import Chunk, Trace, write
from anabranch.testing import run_virtual

QUESTION = "What is 2 + 3?"
PIECES = ("Two ", "and ", "three ", "make ", "five.")
ASKED = Branch.of(QUESTION)


def a_trace(sample: int = 0, pieces: Sequence[str] = PIECES, **changes: Any) -> Trace:
    """A token a piece, a second a piece; one more token at the end, as the end of a turn is."""
    chunks = tuple(
        Chunk(text=text, seconds=1.0 + index, confidences=(10.0 + index,), logprobs=(-0.5 * index,))
        for index, text in enumerate(pieces)
    )
    facts = {"tokens": len(pieces) + 1, "chunks": chunks, "top_logprobs": 20, **changes}
    return Trace(id="p", problem=QUESTION, sample=sample, text="".join(pieces), **facts)


def plain(sample: int, text: str, **changes: Any) -> Trace:
    """A trace that was recorded as a whole."""
    return Trace(id="p", problem=QUESTION, sample=sample, text=text, **changes)


def url(folder: Path, traces: Sequence[Trace], options: str = "") -> str:
    write(folder / "t.jsonl", traces)
    return f"replay:{folder / 't.jsonl'}{options}"


def play(pool: Pool, branch: Branch = ASKED, **call: Any) -> tuple[list[Delta], End]:
    """All deltas of a call, and its end; only the last one has it."""
    wanted = Call(rid="0" * 32, branch=branch, **call)
    deltas = [played.delta for played in Player(pool.take(wanted), wanted)]
    assert [delta.end is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].end is not None
    return deltas, deltas[-1].end


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def generate(place: str, work: Any) -> Any:
    """What a strategy's body gives back, on the virtual clock."""
    found: list[Any] = []

    class Does:
        name = "does"

        async def __call__(self, run: Run) -> None:
            found.append(await work(run))

    async def scenario() -> None:
        async with Orchestrator(place) as orch:
            await orch.ask(QUESTION, strategy=Does())
            assert all(lane.in_flight == lane.waiting == 0 for lane in orch.lanes)

    run_virtual(scenario())
    return found[0]


# which trace


def test_traces_are_given_out_by_sample_number_once_each(tmp_path: Path) -> None:
    """Whatever their order in the file; then an error says how many there are, and how to start anew."""

    async def texts(run: Run) -> list[str]:
        return [(await run.generate(run.question)).text for _ in range(3)]

    place = url(tmp_path, [plain(2, "c"), plain(0, "a"), plain(1, "b")])
    assert generate(place, texts) == ["a", "b", "c"]

    async def four(run: Run) -> Generation:
        lives = [run.generate(run.question) for _ in range(4)]
        return await lives[-1]

    with pytest.raises(
        RequestRejected, match=r"t\.jsonl: all 3 traces of 'What is 2 \+ 3\?'.*again=1"
    ) as error:
        generate(place, four)
    assert not error.value.retryable
    assert generate(f"{place}?again=1", four).text == "a"

    async def seven(run: Run) -> str:
        return "".join([(await run.generate(run.question)).text for _ in range(7)])

    assert generate(f"{place}?again=1", seven) == "abcabca"


def test_the_seed_picks_among_those_that_are_left() -> None:
    """The same seeds give the same traces, all different; other seeds give another order."""

    def order(first: int) -> list[str]:
        pool = Pool("r", [plain(number, str(number)) for number in range(8)])
        return [text_of(play(pool, sampling=Sampling(seed=first + each))[0]) for each in range(8)]

    assert sorted(order(1)) == [str(number) for number in range(8)]
    assert order(1) == order(1) != order(100)


def test_a_prompt_is_known_by_the_problem_and_by_what_was_sent() -> None:
    """Both ways to ask share the traces; white space around them does not count."""
    sent = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{QUESTION} Box it."})
    pool = Pool("r", [plain(0, "a", messages=sent), plain(1, "b", messages=sent), plain(2, "c")])
    assert text_of(play(pool, Branch.of(sent))[0]) == "a"
    assert text_of(play(pool, Branch.of(f"{QUESTION}\n"))[0]) == "b"
    with pytest.raises(RequestRejected, match="all 2 traces"):
        play(pool, Branch.of(sent))


def test_a_prompt_that_was_not_recorded_is_named_with_the_file() -> None:
    """Its beginning, on one line; a recorded problem within another prompt is not that problem."""
    pool = Pool("replay:t.jsonl", [plain(0, "a")])
    with pytest.raises(
        RequestRejected, match=r"replay:t\.jsonl has no trace of the prompt 'Is it so\? What is 2"
    ):
        play(pool, Branch.of(f"Is it so?\n{QUESTION}"))
    with pytest.raises(RequestRejected, match=f"'{'x' * 60}…'"):
        play(pool, Branch.of("x" * 100))


def test_a_model_has_its_own_traces() -> None:
    """In a recording of several models, the call's model says whose trace it gets."""
    pool = Pool("r", [plain(0, "a", model="one"), plain(1, "b", model="two")])
    assert pool.models == ("one", "two")
    assert text_of(play(pool, model="two")[0]) == "b"
    assert play(pool)[1].model == "one"


# what it streams


def test_a_trace_comes_as_it_was_recorded() -> None:
    """Pieces, tokens, confidences and log-probabilities; the count is the server's own."""
    deltas, end = play(Pool("r", [a_trace()]), top_logprobs=20)
    assert [delta.text for delta in deltas] == [*PIECES, ""]
    assert [delta.tokens for delta in deltas] == [1, 1, 1, 1, 1, 0]
    assert end.usage is not None
    assert (end.usage.completion, end.finish_reason) == (6, "stop")
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.logprob for entry in entries] == [0.0, -0.5, -1.0, -1.5, -2.0]
    assert [-sum(value for _, value in entry.top) / 20 for entry in entries] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert [entry.token for entry in entries] == list(PIECES)


def test_confidences_come_only_where_they_are_asked_for_and_known() -> None:
    """Not asked: none. A recording with a trace that has none offers none; what is unknown is not a number."""
    assert all(not delta.logprobs for delta in play(Pool("r", [a_trace()]))[0])
    assert Pool("r", [a_trace()]).top_logprobs == 20
    assert Pool("r", [a_trace(), plain(1, "b")]).top_logprobs == 0
    alone = a_trace(pieces=["x"], chunks=(Chunk(text="x", confidences=(3.0,)),))
    (entry,) = play(Pool("r", [alone]), top_logprobs=1)[0][0].logprobs
    assert math.isnan(entry.logprob)


def test_a_text_without_chunks_comes_word_by_word() -> None:
    """Known tokens are spread over the words; unknown ones are estimated, and the engine told so."""
    deltas, end = play(Pool("r", [plain(0, "Let me think. Five!\n", tokens=9, reasoning="Hm. So")]))
    assert text_of(deltas) == "Let me think. Five!\n"
    assert "".join(delta.reasoning for delta in deltas) == "Hm. So"
    assert sum(delta.tokens for delta in deltas) == 9
    assert end.usage is not None
    deltas, end = play(Pool("r", [plain(0, "x" * 40)]))
    assert (sum(delta.tokens for delta in deltas), end.usage) == (10, None)


def test_an_empty_trace_ends_at_once() -> None:
    """A model may say nothing."""
    deltas, end = play(Pool("r", [plain(0, "", tokens=1)]))
    assert (text_of(deltas), end.finish_reason) == ("", "stop")
    assert end.usage is not None
    assert end.usage.completion == 1


# where it is cut


@pytest.mark.parametrize(
    ("cap", "text", "reason", "completion"),
    [(2, "Two and ", "length", 2), (5, "".join(PIECES), "length", 5), (6, "".join(PIECES), "stop", 6)],
)
def test_the_cap_counts_tokens(cap: int, text: str, reason: str, completion: int) -> None:
    """The end of the turn is one, too."""
    deltas, end = play(Pool("r", [a_trace()]), max_tokens=cap)
    assert (text_of(deltas), end.finish_reason) == (text, reason)
    assert end.usage is not None
    assert end.usage.completion == completion


def test_a_chunk_of_several_tokens_is_cut_within() -> None:
    """It is divided evenly; so are its confidences."""
    wide = a_trace(pieces=["abcdef"], tokens=3, chunks=(Chunk(text="abcdef", tokens=3, confidences=(1, 2, 3)),))
    deltas, _ = play(Pool("r", [wide]), max_tokens=2, top_logprobs=1)
    assert [(delta.text, delta.tokens, len(delta.logprobs)) for delta in deltas] == [("abcd", 2, 2), ("", 0, 0)]


def test_a_stop_string_cuts_before_it_also_across_pieces() -> None:
    """The tokens that hold it are counted; the rest of the last one is the tail, and with it the text of the ids."""
    pool = Pool("r", [a_trace(pieces=["One.", "\n", "\nTwo", " three"])])
    deltas, end = play(pool, stop=("\n\n", "three"))
    assert (text_of(deltas), end.finish_reason, end.matched, end.tail) == ("One.", "stop", "\n\n", "\n\nTwo")
    assert end.usage is not None
    assert end.usage.completion == 3
    assert sum(len(delta.token_ids) for delta in deltas) == 3


def test_what_looked_like_a_stop_string_is_not_lost() -> None:
    """At the end and at the cap, text that was held back is let go."""
    trace = a_trace(pieces=["One.", "\n"])
    assert text_of(play(Pool("r", [trace]), stop=("\n\n",))[0]) == "One.\n"
    assert text_of(play(Pool("r", [trace]), stop=("\n\n",), max_tokens=2)[0]) == "One.\n"


def test_a_recorded_cut_stays_one() -> None:
    """A trace that ended at its cap ends so again."""
    assert play(Pool("r", [a_trace(finish_reason="length", tokens=5)]))[1].finish_reason == "length"


def test_cancelling_stops_it_and_counts_what_came(tmp_path: Path) -> None:
    """A reader that cancels after the second piece has two pieces and two tokens, whatever the timing."""

    async def watched(run: Run) -> Generation:
        live = run.generate(run.question)
        async for _ in live:
            if live.tokens == 2:
                live.cancel()
        return await live

    for options in ("", "?timing=recorded"):
        generation = generate(url(tmp_path, [a_trace()], options), watched)
        assert (generation.text, generation.usage.completion) == ("Two and ", 2)
        assert generation.finish_reason == "cancelled"


# how a branch goes on


@given(cap=st.integers(1, 7), stops=st.sampled_from([(), (" m",), ("e", "x")]), number=st.integers(0, 2))
def test_a_part_and_its_rest_are_the_trace(cap: int, stops: tuple[str, ...], number: int) -> None:
    """Cut by cap or stop string, also where all traces begin alike: text, tokens and ids add up to the whole."""
    ends = ("five.", "six. ", "seven")
    pool = Pool("r", [a_trace(sample, [*PIECES[:4], end]) for sample, end in enumerate(ends)])
    whole, end = play(pool, sampling=Sampling(seed=number))
    pool = Pool("r", [a_trace(sample, [*PIECES[:4], end]) for sample, end in enumerate(ends)])
    first, cut = play(pool, sampling=Sampling(seed=number), max_tokens=cap, stop=stops)
    ids = tuple(token for delta in first for token in delta.token_ids)
    assert cut.usage is not None
    assert end.usage is not None
    if cut.finish_reason == "stop" and cut.matched is None:
        assert text_of(first) == text_of(whole)
        return
    generation = Generation(
        id=1,  # type: ignore[arg-type]
        source=ASKED,
        text=text_of(first),
        token_ids=ids,
        vocabulary="r",
        tail=cut.tail,
    )
    rest, done = play(pool, generation.branch)
    assert text_of(first) + cut.tail + text_of(rest) == text_of(whole)
    assert ids + tuple(token for delta in rest for token in delta.token_ids) == tuple(
        token for delta in whole for token in delta.token_ids
    )
    assert done.usage is not None
    assert cut.usage.completion + done.usage.completion == end.usage.completion


def test_traces_that_were_cut_and_resumed_are_finished_by_themselves(tmp_path: Path) -> None:
    """Four traces that begin alike are cut after two tokens; two are resumed, each with its own end, in any order."""
    ends = ("five.", "six.", "seven.", "eight.")
    place = url(tmp_path, [a_trace(sample, [*PIECES[:4], end]) for sample, end in enumerate(ends)])

    async def pruned(run: Run) -> list[str]:
        lives = [run.generate(run.question, max_tokens=2) for _ in ends]
        parts = [await live for live in lives]
        assert {part.text for part in parts} == {"Two and "}
        rest = [await run.generate(parts[number].branch) for number in (3, 1)]
        return [each.branch.since(run.question) for each in rest]

    assert generate(place, pruned) == ["Two and three make eight.", "Two and three make six."]


def test_a_text_that_begins_a_trace_is_continued() -> None:
    """Without ids, by the text: a trace that was begun comes first; within a token, what is left of it."""
    pool = Pool("r", [a_trace(0, ["Six", " no"]), a_trace(1), a_trace(2)])
    deltas, end = play(pool, ASKED.say("Two an"))
    assert text_of(deltas) == "d three make five."
    assert not any(delta.token_ids for delta in deltas)
    assert end.usage is not None
    assert end.usage.completion == 5
    assert text_of(play(pool)[0]) == "Six no"
    assert play(pool)[0][0].token_ids[0] > play(pool, ASKED.say("Two "))[0][0].token_ids[0]


def test_a_text_that_begins_no_trace_is_an_error() -> None:
    """The text is named."""
    with pytest.raises(RequestRejected, match="begins with 'Well, '"):
        play(Pool("r", [a_trace()]), ASKED.say("Well, "))


def test_text_that_came_without_a_token_is_not_lost_where_a_branch_goes_on() -> None:
    """Servers hold text back, and send it with the end."""
    held = a_trace(
        pieces=["a", "b"], chunks=(Chunk(text="a"), Chunk(text="", tokens=1), Chunk(text="b", tokens=0))
    )
    pool = Pool("r", [held])
    for text, rest in (("a", "b"), ("ab", "")):
        part = Generation(id=1, source=ASKED, text=text, token_ids=(0, 1), vocabulary="r")  # type: ignore[arg-type]
        assert text_of(play(pool, part.branch)[0]) == rest
    assert text_of(play(pool, ASKED.say("a"))[0]) == "b"


# when


async def _arrivals(place: str, branch: Branch) -> list[tuple[float, str]]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    call = Call(rid="0" * 32, branch=branch)
    return [(loop.time() - began, delta.text) async for delta in open_backend(place).stream(call) if delta.text]


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ("?timing=recorded", [1, 2, 3, 4, 5]),
        ("?timing=recorded&speed=4", [0.25, 0.5, 0.75, 1, 1.25]),
        ("?timing=none&speed=2", [0] * 5),
        ("", [0] * 5),
    ],
)
def test_pieces_come_when_they_came(tmp_path: Path, options: str, times: list[float]) -> None:
    """On the clock of the event loop, faster where that is asked for; not at all without timing."""
    arrivals = run_virtual(_arrivals(url(tmp_path, [a_trace()], options), ASKED))
    assert [text for _, text in arrivals] == list(PIECES)
    assert [at for at, _ in arrivals] == pytest.approx(times)


def test_the_rest_of_a_trace_comes_as_if_it_had_not_been_cut(tmp_path: Path) -> None:
    """Its first piece comes as long after the call as it came after the piece before it."""
    place = url(tmp_path, [a_trace()], "?timing=recorded")
    at, text = run_virtual(_arrivals(place, ASKED.say("Two and ")))[0]
    assert text == "three "
    assert at == pytest.approx(1.0)


def test_streams_without_timing_take_turns(tmp_path: Path) -> None:
    """Piece by piece, so that a rule can stop one before another has ended."""
    place = url(tmp_path, [a_trace(0), a_trace(1)])

    async def both() -> list[int]:
        backend, order = open_backend(place), list[int]()

        async def read(number: int) -> None:
            async for _ in backend.stream(Call(rid=f"{number:032x}", branch=ASKED)):
                order.append(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(read(0))
            group.create_task(read(1))
        return order

    assert run_virtual(both()) == [0, 1] * 6


# the URL


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("?speed=0", "speed: needs a number above 0, got '0'"),
        ("?speed=x", "speed"),
        ("?speed=inf", "speed"),
        ("?timing=fast", "timing: is recorded or none"),
        ("?again=yes", "again: is 0 or 1"),
        ("?loop=1", "loop: no such option; `replay:` has timing, speed, again"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: str, said: str) -> None:
    """With what it may be."""
    with pytest.raises(InvalidParameter) as error:
        from_url(url(tmp_path, [a_trace()], options))
    assert said in str(error.value)


def test_a_file_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    """Not at the first call."""
    with pytest.raises(InvalidParameter, match="write replay:FILE"):
        from_url("replay:")
    with pytest.raises(InvalidParameter, match="No such file"):
        from_url(f"replay:{tmp_path / 'none.jsonl'}")
