"""The records of a run's generations: kept small, and still open to what is found out after the end."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

from anabranch import Branch, Run
from anabranch.orchestrator.accounting import GenerationRecord
from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.branch import GenerationId
from anabranch.orchestrator.records import DISCARDED, READ, Records
from anabranch.testing import Reply, ScriptedBackend
from engine import Do, ask, words

FIRST = GenerationId(1)


def record() -> GenerationRecord:
    """The record of a generation that was asked for."""
    return GenerationRecord(id=FIRST, parents=(), label="a", role="target", depth=1, queued_at=0.0)


def test_a_finished_generation_leaves_nothing_for_the_garbage_collector() -> None:
    """However many have ended, in delegated runs too, the collector has no more objects to look at."""
    backend = ScriptedBackend(lambda call: Reply.of("yes"), keep_calls=False)
    tracked: list[int] = []

    async def chain(run: Run) -> None:
        generation = await run.generate(run.question)
        run.discard(await run.generate(generation.branch))

    async def work(run: Run) -> None:
        for _ in range(3):
            for _ in range(200):
                await run.delegate(Do(chain))
            gc.collect()
            tracked.append(len(gc.get_objects()))

    answer = ask(backend, work)
    assert len(answer.generations) == 1200
    assert tracked[2] - tracked[1] < 10


def test_what_is_found_out_after_the_end_still_counts() -> None:
    """A generation that had ended before it was read, or discarded, is read, or wasted; in the inner answer too."""
    inner: list[Answer] = []

    async def asked(run: Run) -> None:
        live = run.generate(run.question, label="asked")
        await asyncio.sleep(1)
        assert live.done
        run.emit((await live).text)

    async def work(run: Run) -> None:
        inner.append(await run.delegate(Do(asked)))
        assert [each.wasted for each in inner[0].generations] == [0]
        generation = await run.generate(Branch.of("later"))
        await asyncio.sleep(1)
        run.discard(generation)
        run.discard(replace(generation, id=inner[0].generations[0].id))

    answer = ask(words(), work)
    assert [(each.read, each.rejected, each.wasted) for each in answer.generations] == [(True, True, 1)] * 2
    assert [each.wasted for each in inner[0].generations] == [1]
    assert answer.usage.wasted == 2


def test_generations_of_an_answer_are_a_sequence() -> None:
    """They can be counted, indexed, sliced and iterated, as often as one likes."""

    async def work(run: Run) -> None:
        for label in "abc":
            await run.generate(run.question, label=label)

    generations = ask(words(), work).generations
    assert len(generations) == 3
    assert [each.label for each in generations] == ["a", "b", "c"]
    assert (generations[-1].label, [each.label for each in generations[1:]]) == ("c", ["b", "c"])
    assert list(generations) == list(generations)


def test_a_running_generation_shows_what_is_known_by_now() -> None:
    """Its record can be looked at before it is closed, and is the same afterwards."""
    records, open_one = Records(), record()
    records.open(open_one)
    open_one.started_at, open_one.completion = 1.5, 7
    assert records[FIRST] == open_one
    records.close(open_one)
    assert records[FIRST] == open_one


def test_marks_are_news_once() -> None:
    """Marking says whether the mark is new; a discarded generation's tokens are wasted."""
    records, one = Records(), record()
    records.open(one)
    one.completion = 7
    records.close(one)
    assert records[FIRST].wasted == 0
    assert [records.mark(FIRST, DISCARDED), records.mark(FIRST, DISCARDED)] == [True, False]
    assert (records[FIRST].discarded, records[FIRST].wasted, records.marked(FIRST, READ)) == (True, 7, False)
