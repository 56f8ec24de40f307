"""Runs as a whole: delegated ones, their events, listeners, warnings, and what they require."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from anabranch import Budget, Orchestrator, Run
from anabranch.orchestrator.backend import Capabilities
from anabranch.orchestrator.errors import (
    AnabranchError,
    UnsupportedCapability,
)
from anabranch.orchestrator.events import Event
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from engine import Do, ask, words


def test_a_delegated_run_shares_budget_and_account_but_not_the_answer() -> None:
    """Its generations count in the outer run, its text is handed back, and its figures are its own."""

    async def inner(run: Run) -> None:
        first = await run.generate(run.question)
        await run.relay(run.generate(run.question.after(first).user("again")))

    async def outer(run: Run) -> None:
        lives = [run.delegate(Do(inner)) for _ in range(2)]
        answers = [await live for live in lives]
        assert [answer.usage.branches for answer in answers] == [2, 2]
        last = await run.generate(run.question.after(*answers).user("sum up"))
        assert last.depth == 3
        run.emit(last.text)

    answer = ask(words(), outer)
    assert answer.usage.branches == 5
    assert answer.text == "sum up!"


def test_a_delegated_run_can_be_read_and_stopped_like_a_generation() -> None:
    """A trace that has become useless is cancelled with all of its branches; what it wrote so far is there."""
    backend = ScriptedBackend(lambda call: Reply.of("a b c d e f", chunk_s=1))

    async def inner(run: Run) -> None:
        await run.relay(run.generate(run.question))

    async def outer(run: Run) -> None:
        live = run.delegate(Do(inner))
        async for _ in live:
            if len(live.text) >= 3:
                break
        live.cancel()
        answer = await live
        assert (answer.text, answer.finish_reason) == ("a b", "cancelled")
        run.emit("kept")

    answer = ask(backend, outer)
    assert backend.calls[0].state == "closed"
    assert answer.usage.wasted == 2


def test_events_tell_the_whole_story_in_order() -> None:
    """First the start, last the end with the answer's figures; each generation is queued, started, finished."""
    seen: list[Event] = []

    async def work(run: Run) -> None:
        run.warn("careful")
        run.fall_back("no list")
        await run.relay(run.generate(run.question))

    answer = ask(words(), work, listen=seen.append)
    assert [event.type for event in seen] == [
        "run_started",
        "warned",
        "fell_back",
        "generation_queued",
        "generation_started",
        "generation_delta",
        "generation_finished",
        "answer_delta",
        "run_finished",
    ]
    assert (answer.active, answer.fell_back, answer.warnings) == (False, "no list", ("careful",))
    assert all(a.t <= b.t for a, b in pairwise(seen))


def test_events_end_also_when_the_run_fails() -> None:
    """Readers of the stream always see an end, with the error."""
    seen: list[Event] = []

    async def work(run: Run) -> None:
        raise AnabranchError("cannot")

    with pytest.raises(AnabranchError, match="cannot"):
        ask(words(), work, listen=seen.append)
    assert seen[-1].type == "run_finished"
    assert seen[-1].error == "cannot"


def test_a_delegated_run_that_is_cancelled_before_its_first_step_settles() -> None:
    """Nobody waits for ever for what never ran."""

    async def outer(run: Run) -> None:
        live = run.delegate(Do(outer))
        live.cancel()
        assert (await live).finish_reason == "cancelled"
        run.emit("kept")

    assert ask(words(), outer).text == "kept"


def test_a_budget_that_others_used_up_does_not_make_a_whole_trace_incomplete() -> None:
    """Three of eight traces are allowed: their votes are whole, and make the answer."""

    async def plain(run: Run) -> None:
        run.finish(await run.relay(run.generate(run.question)))

    async def outer(run: Run) -> None:
        lives = [run.delegate(Do(plain)) for _ in range(8)]
        whole = [live async for live in run.as_completed(lives) if live.error is None and (await live).complete]
        run.emit(str(len(whole)))

    answer = ask(words(), outer, budget=Budget(branches=3))
    assert (answer.text, answer.finish_reason) == ("3", "budget")


def test_warnings_of_delegated_runs_reach_the_answer_once() -> None:
    """The caller sees what went wrong inside, and not once for each trace."""

    async def inner(run: Run) -> None:
        run.warn("odd")
        await run.relay(run.generate(run.question))

    async def outer(run: Run) -> None:
        for live in [run.delegate(Do(inner)) for _ in range(3)]:
            run.emit((await live).text)

    assert ask(words(), outer).warnings == ("odd",)


def test_a_listener_that_fails_does_not_harm_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """It is dropped and logged; the answer is whole."""
    heard: list[str] = []

    def bad(event: Event) -> None:
        heard.append(event.type)
        raise OSError("disk full")

    async def work(run: Run) -> None:
        await run.relay(run.generate(run.question))

    assert ask(words(), work, listen=bad).text == "Q!"
    assert heard == ["run_started"]
    assert "disk full" in caplog.text


def test_a_strategy_says_what_it_needs_and_a_mismatch_is_found_first() -> None:
    """The error names the capability and the role; nothing has been generated."""

    class Needy(Do):
        requires = {"target": ("prefill", "labels")}  # noqa: RUF012

    async def work(run: Run) -> None:
        raise AssertionError

    backend = ScriptedBackend([], capabilities=Capabilities(labels=True))

    async def scenario() -> None:
        async with Orchestrator(backend) as orch:
            with pytest.raises(UnsupportedCapability, match="'do' needs prefill for its target"):
                await orch.ask("Q", strategy=Needy(work))

    run_virtual(scenario())


def test_the_first_token_of_an_answer_is_one_that_can_be_read() -> None:
    """Blank space does not count as the beginning of an answer."""

    async def work(run: Run) -> None:
        run.emit("\n")
        await asyncio.sleep(3)
        run.emit("text")

    assert ask(words(), work).timing.first_token_s == pytest.approx(3.0)
