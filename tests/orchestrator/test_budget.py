"""Budgets: a limit ends a run with its best so far, never with an exception that throws work away."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import Answer, Branch, Budget, Orchestrator, Run
from anabranch.orchestrator.errors import BudgetExhausted, InvalidParameter
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Points:
    """Four points side by side, written in order; each is a hundred words, a second a word."""

    name = "points"

    async def __call__(self, run: Run) -> None:
        for live in [run.generate(run.question.user(f"point {i}")) for i in range(4)]:
            await run.relay(live)


class Chain:
    """Generations one after the other, for ever; proposes what it has."""

    name = "chain"

    async def __call__(self, run: Run) -> None:
        branch = run.question
        while True:
            generation = await run.generate(branch)
            branch = generation.branch
            run.propose(branch.text)


def answer(strategy: Points | Chain, budget: Budget, words: int = 100) -> tuple[Answer, ScriptedBackend]:
    backend = ScriptedBackend(lambda call: Reply(chunks=("w ",) * words, chunk_s=1.0))

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            result = await orch.ask("Q", strategy=strategy, budget=budget)
        assert len(asyncio.all_tasks()) == 1
        return result

    return run_virtual(scenario()), backend


def test_the_token_budget_stops_all_branches_and_keeps_what_they_wrote() -> None:
    """Forty tokens over four branches: ten words each, all in the answer, with a status and a warning."""
    result, backend = answer(Points(), Budget(tokens=40))
    assert result.finish_reason == "budget"
    assert result.usage.work == 40
    assert result.text.count("w") == 40
    assert any("tokens" in warning for warning in result.warnings)
    assert backend.running == 0


def test_the_deadline_stops_all_branches_and_keeps_what_they_wrote() -> None:
    """After ten seconds the run answers with what there is."""
    result, _ = answer(Points(), Budget(deadline_s=10))
    assert result.finish_reason == "deadline"
    assert result.timing.wall_s == pytest.approx(10.0)
    assert 36 <= result.text.count("w") <= 44


def test_the_branch_budget_lets_finished_work_through() -> None:
    """Two of four points are allowed: both are written whole before the run ends."""
    result, _ = answer(Points(), Budget(branches=2))
    assert result.finish_reason == "budget"
    assert (result.usage.branches, result.text.count("w")) == (2, 200)


def test_the_depth_budget_ends_a_chain_with_the_proposal() -> None:
    """Nothing was written yet, so the best proposal becomes the answer."""
    result, _ = answer(Chain(), Budget(depth=3), words=5)
    assert result.finish_reason == "budget"
    assert result.text.count("w") == 15


def test_a_call_is_capped_by_what_is_left() -> None:
    """The server is told the rest of the budget as the call's own cap."""
    _, backend = answer(Chain(), Budget(tokens=12), words=5)
    assert [log.call.max_tokens for log in backend.calls] == [12, 7, 2]


def test_a_strategy_that_hangs_beside_its_generations_is_stopped_too() -> None:
    """The deadline holds even where no generation is in flight."""

    class Hang:
        name = "hang"

        async def __call__(self, run: Run) -> None:
            run.emit("so far")
            await asyncio.sleep(3600)

    async def scenario() -> Answer:
        async with Orchestrator(ScriptedBackend([])) as orch:
            return await orch.ask("Q", strategy=Hang(), budget=Budget(deadline_s=5))

    result = run_virtual(scenario())
    assert (result.text, result.finish_reason) == ("so far", "deadline")
    assert result.timing.wall_s == pytest.approx(6.0)


def test_a_refused_generation_waits_for_what_is_in_flight() -> None:
    """The refusal comes last, so that a strategy that reads results as they end sees all of them."""
    ended: list[str] = []

    class Race:
        name = "race"

        async def __call__(self, run: Run) -> None:
            lives = [run.generate(Branch.of(f"{i}")) for i in range(4)]
            errors = [live.error async for live in run.as_completed(lives)]
            ended.extend("refused" if isinstance(error, BudgetExhausted) else "done" for error in errors)

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("x", delay_s=float(call.branch.question)))
        async with Orchestrator(backend) as orch:
            await orch.ask("Q", strategy=Race(), budget=Budget(branches=2))

    run_virtual(scenario())
    assert ended == ["done", "done", "refused", "refused"]


@pytest.mark.parametrize("field", ["tokens", "branches", "depth", "deadline_s"])
def test_limits_must_be_positive(field: str) -> None:
    """A senseless limit is refused with the field named."""
    with pytest.raises(InvalidParameter, match=f"budget.{field}"):
        Budget(**{field: 0})


def test_the_token_budget_holds_where_a_stream_never_waits() -> None:
    """Pieces that come in one burst are stopped at the limit, too."""
    backend = ScriptedBackend(lambda call: Reply(chunks=("w ",) * 1000))

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            return await orch.ask("Q", strategy=Points(), budget=Budget(tokens=50))

    result = run_virtual(scenario())
    assert (result.usage.work, result.finish_reason) == (50, "budget")


def test_a_judgement_that_the_deadline_cut_short_is_none() -> None:
    """No label is preferred by a judge who had no time: the run ends with what it has."""

    class Judge:
        name = "judge"

        async def __call__(self, run: Run) -> None:
            run.propose("undecided")
            run.emit(str(await run.score(run.question, ("A", "B"))))

    async def scenario() -> Answer:
        async with Orchestrator(ScriptedBackend(lambda call: Reply(delay_s=60.0))) as orch:
            return await orch.ask("Q", strategy=Judge(), budget=Budget(deadline_s=5))

    assert run_virtual(scenario()).text == "undecided"


def test_a_call_that_the_server_ends_at_the_budgets_cap_ended_for_the_budget() -> None:
    """The cap of the call was what was left of the budget: `length` would blame the caller's own cap."""
    backend = ScriptedBackend([Reply.of("one two three four")])

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            return await orch.ask("Q", budget=Budget(tokens=2))

    result = run_virtual(scenario())
    assert (result.text, result.finish_reason) == ("one two", "budget")


def test_a_strategy_that_stumbles_over_cut_text_keeps_what_it_wrote() -> None:
    """After a limit an error of the strategy's own is a warning; before one it is raised."""

    class Strict:
        name = "strict"

        async def __call__(self, run: Run) -> None:
            run.emit("so far")
            if not (await run.generate(run.question)).complete:
                raise InvalidParameter("plan", "cannot be read")

    async def scenario(budget: Budget | None, max_words: int) -> Answer:
        backend = ScriptedBackend(
            lambda call: Reply(chunks=("w ",) * max_words, chunk_s=1.0, finish_reason="length")
        )
        async with Orchestrator(backend) as orch:
            return await orch.ask("Q", strategy=Strict(), budget=budget)

    result = run_virtual(scenario(Budget(tokens=5), 100))
    assert (result.text, result.finish_reason) == ("so far", "budget")
    assert any("cannot be read" in warning for warning in result.warnings)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        run_virtual(scenario(None, 3))
