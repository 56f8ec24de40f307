"""The loops in docs/design/strategies.md run, and do what their papers say."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch import Answer, Limits, Orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.errors import AnabranchError
from anabranch.testing import Reply, ScriptedBackend, run_virtual

NOTES = Path(__file__).parents[1] / "docs/design/strategies.md"


async def lines(live: Any) -> AsyncIterator[str]:
    """The lines of a generation, each as soon as it is whole."""
    rest = ""
    async for delta in live:
        *whole, rest = (rest + delta.text).split("\n")
        for line in whole:
            yield line
    if rest.strip():
        yield rest


async def add(arguments: str) -> str:
    await asyncio.sleep(1)
    return str(sum(map(int, arguments.split())))


async def fail(arguments: str) -> str:
    raise AnabranchError("no such page")


@pytest.fixture(scope="module")
def notes() -> dict[str, Any]:
    """The code on the page, with the parsers that it leaves out."""
    if not NOTES.exists():
        pytest.skip("not in a checkout")
    names: dict[str, Any] = {
        "lines": lines,
        "TOOLS": {"add": add, "fail": fail},
        "answer_in": lambda text: text.split()[-1],
        "enough": lambda votes: bool(votes) and max(votes.values()) >= 3,
        "useless": lambda text: "hmm" in text,
        "outlines": lambda text: re.findall(r"<Outline>([^<]+)", text),
    }
    for block in re.findall(r"```python\n(.*?)```", NOTES.read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102 - our own page
    return names


def ask(
    strategy: Any, script: Callable[[Call], Reply], draft: Callable[[Call], Reply] | None = None
) -> tuple[Answer, ScriptedBackend]:
    backend = ScriptedBackend(script)
    roles = {"draft": ScriptedBackend(draft)} if draft else None

    async def scenario() -> Answer:
        async with Orchestrator(backend, roles=roles, limits=Limits(start=64)) as orch:
            answer = await orch.ask("Q", strategy=strategy)
        assert len(asyncio.all_tasks()) == 1
        assert backend.running == 0
        return answer

    return run_virtual(scenario()), backend


STEPS = ["one", "two", "three", "four", "five", "six"]


def writer(text: Callable[[int], str], step_s: float) -> Callable[[Call], Reply]:
    """Writes step after step; the last one ends the text."""

    def reply(call: Call) -> Reply:
        if call.labels:
            return Reply(label_logprobs={"yes": -5.0, "no": -0.1}, delay_s=0.1)
        index = call.branch.text.count("\n\n")
        return Reply(chunks=(text(index),), delay_s=step_s, matched="\n\n" if index < len(STEPS) - 1 else None)

    return reply


@pytest.mark.parametrize("wrong_at", [None, 0, 2, 4])
def test_lookahead_writes_the_targets_text_sooner(notes: dict[str, Any], wrong_at: int | None) -> None:
    """The answer is the target's own whatever the draft writes, and costs less time than the target alone."""
    target = writer(lambda i: STEPS[i], step_s=10.0)
    draft = writer(lambda i: "wrong" if i == wrong_at else STEPS[i], step_s=1.0)
    answer, _ = ask(notes["Lookahead"](), target, draft)
    assert answer.text == "\n\n".join(STEPS)
    assert answer.timing.wall_s <= (16.0 if wrong_at is None else 36.0) < 10.0 * len(STEPS)
    assert answer.usage.wasted > 0


def test_lookahead_with_a_useless_draft_loses_little(notes: dict[str, Any]) -> None:
    """At least one target step is gained in each cycle: never slower than the target alone by more than judging."""
    answer, _ = ask(notes["Lookahead"](), writer(lambda i: STEPS[i], 10.0), writer(lambda i: "wrong", 1.0))
    assert answer.text == "\n\n".join(STEPS)
    assert answer.timing.wall_s == pytest.approx(60.0, abs=2.0)


def test_best_of_n_stops_when_enough_agree_and_prunes_what_is_useless(notes: dict[str, Any]) -> None:
    """Three equal answers end it; a useless trace is closed at once, the slow ones when it is decided."""
    traces = iter(
        [
            Reply.of("it is 4", delay_s=1),
            Reply.of("hmm " * 500, chunk_s=1),
            Reply.of("surely 5", delay_s=2),
            Reply.of("so 4", delay_s=3),
            Reply.of("it is 4", delay_s=4),
            Reply.of("late " * 100, chunk_s=1),
        ]
    )
    answer, backend = ask(notes["BestOfN"](n=6), lambda call: next(traces))
    assert answer.text == "4"
    assert answer.timing.wall_s == pytest.approx(4.0)
    assert Counter(log.state for log in backend.calls) == {"done": 4, "closed": 2}
    assert answer.usage.wasted > 0


def test_threads_fork_and_join_in_the_order_of_the_outlines(notes: dict[str, Any]) -> None:
    """The threads run side by side behind one prefix; the model goes on behind all of them."""

    def reply(call: Call) -> Reply:
        text = call.branch.text
        if text.endswith("a:"):
            return Reply.of(" slow", delay_s=5)
        if text.endswith("b:"):
            return Reply.of(" quick", delay_s=1)
        if "<Thread>" in text:
            return Reply.of("so all is well")
        return Reply(chunks=("<Outline>a", "<Outline>b"), matched="</Outlines>")

    answer, backend = ask(notes["Threads"](), lambda call: _close(reply(call), call))
    assert (
        answer.text
        == "<Outline>a<Outline>b</Outlines>\n<Thread>\na: slow</Thread>\n<Thread>\nb: quick</Thread>\nso all is well"
    )
    assert answer.timing.wall_s == pytest.approx(5.0)
    assert [log.call.branch.depth for log in backend.calls] == [0, 1, 1, 2]


def _close(reply: Reply, call: Call) -> Reply:
    from dataclasses import replace

    return replace(reply, matched="</Thread>") if call.branch.text.endswith(":") else reply


def test_map_writes_the_items_in_their_order(notes: dict[str, Any]) -> None:
    """Items are worked on side by side."""
    answer, _ = ask(notes["Map"]("say {}", ["x", "y"]), lambda call: Reply.of(call.branch.question, delay_s=1))
    assert answer.text == "say x\nsay y\n"
    assert answer.timing.wall_s == pytest.approx(1.0)


def test_a_plan_is_carried_out_while_it_is_written(notes: dict[str, Any]) -> None:
    """Tools start with their line; a failure reaches the joiner with its reason, and its dependants'."""

    def reply(call: Call) -> Reply:
        if call.branch.parents:
            return Reply.of(call.branch.question)
        plan = ["a add 1 2\n", "b add 3 4\n", "c add $a $b\n", "d fail x\n", "e add $d 1\n"]
        return Reply(chunks=tuple(plan), chunk_s=1.0)

    answer, _ = ask(notes["Plan"](), reply)
    assert answer.text.splitlines()[:3] == ["a: 3", "b: 7", "c: 10"]
    assert answer.text.count("no such page") == 2
    assert answer.timing.wall_s == pytest.approx(4.0)


def test_search_follows_the_judge(notes: dict[str, Any]) -> None:
    """The partial solution with the least doubt is expanded first."""
    steps = iter("abcdefghijkl")

    def reply(call: Call) -> Reply:
        if call.labels:
            last = call.branch.messages[-2].text.strip()[-1]
            return Reply(label_logprobs={"yes": -0.1 if last == "b" else -3.0, "no": -1.0})
        ends = "b" in call.branch.text
        return Reply(chunks=(next(steps),), matched=None if ends else "\n\n")

    answer, _ = ask(notes["Search"](), reply)
    assert re.fullmatch(r"b\n\n[d-f]", answer.text)


def test_workers_see_what_the_others_found_and_the_first_ends_it(notes: dict[str, Any]) -> None:
    """Findings go into the others' next prompts; the first whole answer cancels the rest."""
    backends: list[Call] = []

    def reply(call: Call) -> Reply:
        backends.append(call)
        number = len(backends)
        if "fact1" in call.branch.question and "fact2" in call.branch.messages[1].text:
            return Reply.of("done", delay_s=1)
        return Reply(chunks=(f"fact{number}",), delay_s=float(number), matched="\n\n")

    answer, backend = ask(notes["Collaborate"](workers=2), reply)
    assert answer.text == "done"
    assert "closed" in {log.state for log in backend.calls}


def test_a_trace_of_best_of_n_may_be_run_by_lookahead(notes: dict[str, Any]) -> None:
    """Strategies compose: the votes are on answers that lookahead wrote."""
    target, draft = writer(lambda i: STEPS[i], 10.0), writer(lambda i: STEPS[i], 1.0)
    answer, _ = ask(notes["both"](3), target, draft)
    assert answer.text == "six"
    assert answer.timing.wall_s < 40.0
    assert {record.role for record in answer.generations} == {"target", "draft"}
