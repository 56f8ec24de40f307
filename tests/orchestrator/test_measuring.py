"""Measurements: numbers in place of text, through the same scheduler and account as everything else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import Budget, Orchestrator, Run
from anabranch.orchestrator.backend import Call, Capabilities
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import BudgetExhausted, InvalidParameter, UnsupportedCapability
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from engine import Do, ask


def test_each_measure_is_asked_for_by_its_name_and_of_its_role() -> None:
    """The numbers come back as the backend gave them; of several rewards the last one counts."""
    measured: dict[str | None, tuple[float, ...]] = {
        "embedding": (0.6, 0.8),
        "reward": (0.1, 0.9),
        "likelihood": (-0.5, -1.5),
    }
    found: list[Any] = []

    def scorer(call: Call) -> Reply:
        return Reply(measured=measured[call.measure], prompt_tokens=7)

    async def work(run: Run) -> None:
        said = run.question.say("a step")
        found.append(await run.embed(Branch.of("a text")))
        found.append(await run.reward(said))
        found.append(await run.likelihood(said))

    async def scenario() -> None:
        backends = {name: ScriptedBackend(scorer, name=name) for name in ("target", "embedder", "scorer")}
        async with Orchestrator(
            backends["target"], roles={"embedder": backends["embedder"], "scorer": backends["scorer"]}
        ) as orch:
            answer = await orch.ask("Q", strategy=Do(work))
        assert found == [(0.6, 0.8), 0.9, (-0.5, -1.5)]
        asked = {name: [log.call.measure for log in backend.calls] for name, backend in backends.items()}
        assert asked == {"target": ["likelihood"], "embedder": ["embedding"], "scorer": ["reward"]}
        assert (answer.usage.prompt, answer.usage.completion, answer.usage.branches) == (21, 0, 3)
        assert answer.usage.wasted == 0

    run_virtual(scenario())


@pytest.mark.parametrize("what", ["embedding", "reward", "likelihood"])
def test_what_a_backend_cannot_measure_is_refused_before_the_call(what: str) -> None:
    """The error names the server, the measure, and what it does measure."""
    backend = ScriptedBackend([], capabilities=Capabilities(prefill=True, measures=frozenset()))

    async def work(run: Run) -> None:
        said = run.question.say("a step")
        asked = {"embedding": run.embed, "reward": run.reward, "likelihood": run.likelihood}[what]
        with pytest.raises(UnsupportedCapability, match=f"scripted: measures no {what}; it measures: nothing"):
            await asked(said)

    ask(backend, work)
    assert backend.calls == []


def test_there_must_be_something_to_measure() -> None:
    """No text, no embedding; no segment, no likelihood: the error says so, and nothing is sent."""
    backend = ScriptedBackend([])

    async def work(run: Run) -> None:
        with pytest.raises(InvalidParameter, match="no text to embed"):
            await run.embed(run.question.user(" \n"))
        for branch in (run.question, run.question.say("")):
            with pytest.raises(InvalidParameter, match="last segment"):
                await run.likelihood(branch)

    ask(backend, work)
    assert backend.calls == []


def test_a_measurement_that_the_deadline_cuts_is_none() -> None:
    """No number is made up: the strategy is told that the budget is used up."""
    backend = ScriptedBackend([Reply(delay_s=60.0, measured=(1.0,))])
    seen: list[str] = []

    async def work(run: Run) -> None:
        try:
            await run.reward(run.question.say("x"))
        except BudgetExhausted as error:
            seen.append(error.limit)
            raise

    answer = ask(backend, work, budget=Budget(deadline_s=1.0))
    assert seen == ["deadline"]
    assert answer.finish_reason == "deadline"


def test_a_measurement_stands_on_what_was_measured() -> None:
    """In the graph of the run it depends on the generation that wrote the text."""
    backend = ScriptedBackend([Reply.of("a step"), Reply(measured=(1.0,))])

    async def work(run: Run) -> None:
        step = await run.generate(run.question)
        await run.reward(step.branch)

    answer = ask(backend, work)
    assert [tuple(record.parents) for record in answer.generations] == [(), (1,)]


def test_verdicts_are_events_and_figures_stand_in_the_answer() -> None:
    """What a strategy judges goes into the trace; what it reports of itself goes into its answer."""
    events: list[Any] = []

    async def work(run: Run) -> None:
        draft = await run.generate(run.question)
        run.judged(draft, accepted=False, by="rating", score=3.0)
        run.report(accepted=0, rejected=1)
        run.report(rejected=2)

    answer = ask(ScriptedBackend([Reply.of("x")]), work, listen=events.append)
    (verdict,) = [event for event in events if event.type == "generation_judged"]
    assert (verdict.id, verdict.accepted, verdict.by, verdict.score) == (1, False, "rating", 3.0)
    assert answer.figures == {"accepted": 0, "rejected": 2}
    assert answer.to_dict()["figures"] == {"accepted": 0, "rejected": 2}


async def test_a_measurement_that_is_cancelled_leaves_nothing_behind() -> None:
    """Leaving the scope stops the call at the backend."""
    backend = ScriptedBackend([Reply.hanging()])

    async def work(run: Run) -> None:
        async with run.scope() as scope:
            scope.spawn(run.embed, run.question)
            await asyncio.sleep(0.01)

    async with Orchestrator(backend) as orch:
        await orch.ask("Q", strategy=Do(work))
    assert [log.state for log in backend.calls] == ["closed"]
    assert backend.running == 0
