"""Lookahead as a strategy: what it writes, what it costs, and what it does when something fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from lookahead import World, simulate  # the benchmark's
from lookahead import answer as answer_of

from anabranch import Answer, Limits, Orchestrator, RetryPolicy
from anabranch.orchestrator.backend import Call, SpecFigures
from anabranch.orchestrator.errors import BackendUnavailable, InvalidParameter, RequestRejected
from anabranch.strategies.lookahead import Lookahead, specreason
from anabranch.strategies.lookahead.timing import DepthRule, speedup
from anabranch.testing import Reply, ScriptedBackend, run_virtual

STEPS = 6
EXPECTED = "\n\n".join(f"step {place}" for place in range(STEPS))
DOWN = BackendUnavailable("it is down", retryable=False)
Script = Callable[[Call], Reply]


def place(call: Call) -> int:
    """How many steps stand in the assistant's turn."""
    return call.branch.text.count("\n\n")


def right(call: Call, *, delay_s: float = 1.0) -> Reply:
    """The step that belongs there."""
    last = place(call) == STEPS - 1
    return Reply(chunks=(f"step {place(call)}",), delay_s=delay_s, tokens=10, matched=None if last else "\n\n")


def quick(call: Call) -> Reply:
    return right(call, delay_s=0.1)


def says(text: str, *, matched: str | None = "\n\n") -> Script:
    return lambda call: Reply(chunks=(text,), delay_s=0.1, tokens=10, matched=matched)


def run(
    target: Script = right,
    draft: Script = quick,
    judge: Script | None = None,
    *,
    listeners: Sequence[Callable[[Any], None]] = (),
    max_tokens: int | None = None,
    **params: object,
) -> tuple[Answer, dict[str, ScriptedBackend]]:
    """An answer by these models, and the models; nothing is left under way at any of them."""
    backends = {"target": ScriptedBackend(target), "draft": ScriptedBackend(draft)}
    if judge is not None:
        backends["judge"] = ScriptedBackend(judge)
    roles = {name: backend for name, backend in backends.items() if name != "target"}

    async def ask() -> Answer:
        async with Orchestrator(backends["target"], roles=roles, retry=RetryPolicy(attempts=1)) as orch:
            strategy = Lookahead(**{"verifier": "exact", **params})  # type: ignore[arg-type]
            return await orch.ask("question", strategy=strategy, listeners=listeners, max_tokens=max_tokens)

    answer = run_virtual(ask())
    assert not any(backend.running for backend in backends.values())
    return answer, backends


def test_right_drafts_make_the_answer_quicker() -> None:
    """Six steps of a second each take 1.5 seconds where the draft is right and ten times as fast."""
    answer, _ = run(depth=8)
    assert answer.text == EXPECTED
    assert answer.timing.wall_s == pytest.approx(1.5)
    assert answer.usage.wasted == 0
    assert answer.finish_reason == "stop"


def test_wrong_drafts_cost_tokens_but_no_time_and_no_word() -> None:
    """The answer is the target's, in the target's time; what was drafted is wasted."""
    answer, _ = run(draft=says("nonsense"))
    assert answer.text == EXPECTED
    assert answer.timing.wall_s == pytest.approx(6.0)
    assert answer.usage.wasted > 0


@pytest.mark.parametrize(
    "draft",
    [
        says(""),
        says("half of", matched=None),
        lambda call: Reply(chunks=("word ",) * 500, delay_s=0.1),
        lambda call: Reply.hanging(),
    ],
    ids=["writes nothing", "ends at once", "never ends a step", "hangs"],
)
def test_a_useless_draft_does_no_harm(draft: Script) -> None:
    """Nothing of it is in the answer, which takes no longer than the target alone; its calls are stopped."""
    answer, _ = run(draft=draft)
    assert answer.text == EXPECTED
    assert answer.timing.wall_s == pytest.approx(6.0)


def test_when_the_draft_dies_the_target_goes_on_plainly() -> None:
    """The answer is whole, and a warning says what happened."""

    def dies(call: Call) -> Reply:
        return quick(call) if place(call) < 2 else Reply.failing(DOWN)

    def target(call: Call) -> Reply:
        if "\n\n" in call.stop:
            return right(call)
        rest = "\n\n".join(f"step {index}" for index in range(place(call), STEPS))
        return Reply.of(rest)

    answer, _ = run(target, dies)
    assert " ".join(answer.text.split()) == " ".join(EXPECTED.split())
    assert any("it is down" in warning for warning in answer.warnings)


def test_when_the_target_fails_so_does_the_answer() -> None:
    """A server's error is the caller's, with its status."""
    with pytest.raises(RequestRejected):
        run(lambda call: Reply.failing(RequestRejected("no")))


def test_a_judge_decides_where_the_words_differ() -> None:
    """Steps that mean the same are kept in the draft's words."""

    def reworded(call: Call) -> Reply:
        last = place(call) == STEPS - 1
        return Reply(chunks=(f"Step number {place(call)}",), delay_s=0.1, matched=None if last else "\n\n")

    def yes(call: Call) -> Reply:
        return Reply(label_logprobs={"yes": -0.1, "no": -3.0})

    answer, backends = run(draft=reworded, judge=yes, verifier="same")
    assert answer.text == EXPECTED.replace("step", "Step number")
    assert len(backends["judge"].calls) == STEPS


def test_without_its_judge_only_exact_matches_count() -> None:
    """The answer is the target's, and a warning says so."""
    answer, _ = run(draft=says("else"), judge=lambda call: Reply.failing(DOWN), verifier="same")
    assert answer.text == EXPECTED
    assert any("only exact matches" in warning for warning in answer.warnings)


def test_a_rating_keeps_good_drafts_and_has_the_rest_written_anew() -> None:
    """SpecReason: the target rates each draft, and writes only what it rates below the threshold."""

    def target(call: Call) -> Reply:
        if call.labels:
            good = "step 3" not in call.branch.messages[-1].text
            return Reply(label_logprobs={digit: 0.0 if (digit == "9") is good else -9.0 for digit in "0129"})
        return Reply(chunks=(f"better {place(call)}",), matched="\n\n")

    def ask() -> Answer:
        async def inner() -> Answer:
            roles = {"draft": ScriptedBackend(quick)}
            async with Orchestrator(ScriptedBackend(target), roles=roles) as orch:
                return await orch.ask("question", strategy=specreason())

        return run_virtual(inner())

    assert ask().text == EXPECTED.replace("step 3", "better 3")


def test_a_look_up_needs_no_draft_model() -> None:
    """What stood before is drafted again, at no cost."""
    story = "one two three four\n\nfive six\n\nseven"

    def target(call: Call) -> Reply:
        words = ("one two three four", "five six", "one two three four", "five six", "the end")
        index = min(place(call), 4)
        return Reply(chunks=(words[index],), delay_s=1.0, matched="\n\n" if index < 4 else None)

    async def ask() -> Answer:
        async with Orchestrator(ScriptedBackend(target)) as orch:
            strategy = Lookahead(drafter="lookup", verifier="exact", lookup_words=4)
            return await orch.ask(story, strategy=strategy)

    answer = run_virtual(ask())
    assert answer.text == "one two three four\n\nfive six\n\none two three four\n\nfive six\n\nthe end"
    assert answer.timing.wall_s < 5.0


def test_a_chain_of_drafts_takes_the_middle_models_step_where_the_small_ones_is_poor() -> None:
    """The small model writes, the middle one rates, and writes anew."""

    def middle(call: Call) -> Reply:
        if call.labels:
            good = "poor" not in call.branch.messages[-1].text
            return Reply(label_logprobs={digit: 0.0 if (digit == "9") is good else -9.0 for digit in "0129"})
        return right(call, delay_s=0.2)

    async def ask() -> Answer:
        roles = {"draft": ScriptedBackend(says("poor")), "middle": ScriptedBackend(middle)}
        async with Orchestrator(ScriptedBackend(right), roles=roles) as orch:
            return await orch.ask("question", strategy=Lookahead(drafter="chain", verifier="exact"))

    answer = run_virtual(ask())
    assert answer.text == EXPECTED
    assert answer.timing.wall_s < 3.0


def test_the_cap_and_stop_strings_are_the_answers() -> None:
    """At the cap the answer ends with `length`, never beyond it; a stop string ends it there."""

    async def ask(**arguments: object) -> Answer:
        async with Orchestrator(ScriptedBackend(right), roles={"draft": ScriptedBackend(quick)}) as orch:
            return await orch.ask("question", strategy=Lookahead(verifier="exact"), **arguments)  # type: ignore[arg-type]

    capped = run_virtual(ask(max_tokens=30))
    assert capped.text == "step 0\n\nstep 1\n\nstep 2\n\n"
    assert capped.finish_reason == "length"


def test_a_target_that_repeats_itself_is_ended() -> None:
    """Three equal steps in a row are a loop."""
    answer, _ = run(target=says("again"), draft=says("else"))
    assert answer.text.count("again") == 3
    assert any("same step" in warning for warning in answer.warnings)


def test_speculation_that_does_not_pay_is_given_up() -> None:
    """With `depth="auto"`, a draft that is always wrong and slow is left alone, and a warning says why."""
    steps = 40

    def target(call: Call) -> Reply:
        if "\n\n" not in call.stop:
            return Reply.of("the rest")
        return Reply(
            chunks=(f"step {place(call)}",), delay_s=1.0, matched="\n\n" if place(call) < steps else None
        )

    slow = lambda call: Reply(chunks=("wrong",), delay_s=0.9, matched="\n\n")
    answer, _ = run(target, slow, depth="auto")
    assert answer.text.endswith("the rest")
    assert any("does not pay" in warning for warning in answer.warnings)


@pytest.mark.parametrize("seed", range(25))
def test_cancelled_at_any_time_it_leaves_nothing(seed: int) -> None:
    """No call is left at any server, whenever it is stopped."""
    world = World(steps=30, acceptance=0.6, ratio=0.2, seed=seed)
    backends = [ScriptedBackend(world.target), ScriptedBackend(world.draft)]

    async def ask() -> None:
        async with Orchestrator(backends[0], roles={"draft": backends[1]}, limits=Limits(start=64)) as orch:
            async with asyncio.timeout(random.Random(seed).uniform(0.05, 12.0)):
                await orch.ask(
                    "question", strategy=Lookahead(depth=seed % 4, width=1 + seed % 2, verifier="exact")
                )

    try:
        run_virtual(ask())
    except TimeoutError:
        pass
    assert [backend.running for backend in backends] == [0, 0]


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize(("acceptance", "ratio", "depth"), [(0.5, 0.2, 1), (0.7, 0.1, 4), (0.9, 0.05, 8)])
def test_the_simulation_keeps_to_the_closed_form(
    acceptance: float, ratio: float, depth: int, in_step: bool
) -> None:
    """Over 800 steps the speed-up is what the model of time says, within the noise of so many."""
    world = World(steps=800, acceptance=acceptance, ratio=ratio)
    simulated = simulate(world, depth=depth, in_step=in_step)
    assert simulated == pytest.approx(speedup(acceptance, ratio, depth, in_step=in_step), rel=0.08)


def test_many_answers_at_a_time() -> None:
    """Each is its own tree; together they take no longer than one."""
    world = World(steps=20, acceptance=1.0, ratio=0.1)

    async def ask() -> list[Answer]:
        async with (
            Orchestrator(
                ScriptedBackend(world.target),
                roles={"draft": ScriptedBackend(world.draft)},
                limits=Limits(start=512),
            ) as orch,
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(orch.ask("question", strategy=Lookahead(verifier="exact"))) for _ in range(10)
            ]
        return [task.result() for task in tasks]

    alone = run_virtual(answer_of(World(steps=20, acceptance=1.0, ratio=0.1), Lookahead(verifier="exact")))
    for answer in run_virtual(ask()):
        assert answer.text == alone.text
        assert answer.timing.wall_s == pytest.approx(alone.timing.wall_s)


def test_the_depth_rule_follows_what_it_sees() -> None:
    """Good drafts are followed far, poor ones not at all, and on a full server none."""
    rule = DepthRule(most=8)
    for _ in range(50):
        rule.saw_verdict(accepted=True)
        rule.saw_step("draft", 0.1)
        rule.saw_step("target", 1.0)
    assert rule.depth() >= 6
    assert rule.depth(load=1.0) == 0
    poor = DepthRule(most=8)
    for _ in range(50):
        poor.saw_verdict(accepted=False)
        poor.saw_step("draft", 0.9)
        poor.saw_step("target", 1.0)
    assert poor.depth() == 0


@pytest.mark.parametrize("params", [{"depth": -1}, {"in_step": True, "verifier": "rating"}])
def test_bad_parameters_are_named(params: dict[str, object]) -> None:
    """A negative depth, and a synchronous form that compares nothing."""

    async def ask() -> None:
        async with Orchestrator(ScriptedBackend(right)) as orch:
            await orch.ask("question", strategy="lookahead", params=params)

    with pytest.raises(InvalidParameter):
        run_virtual(ask())


def test_the_answer_says_what_became_of_the_drafts() -> None:
    """Counts and tokens by fate; the rate is over what was decided on; the trace has a verdict for each."""

    def draft(call: Call) -> Reply:
        return quick(call) if place(call) != 2 else says("wrong")(call)

    heard: list[Any] = []
    answer, _ = run(draft=draft, depth=2, listeners=[heard.append])
    figures = answer.figures
    # The draft after "wrong" is there before the verdict on it, and nobody judges that one.
    assert figures["drafts"] == {"accepted": 5, "rejected": 1, "discarded": 1}
    assert figures["draft_tokens"] == {"accepted": 50, "rejected": 10, "discarded": 10}
    assert figures["acceptance"] == pytest.approx(5 / 6, abs=1e-4)
    assert (figures["target_steps"], figures["target_tokens"]) == (1, 10)
    assert figures["depth"] == 2
    assert figures["accept_length"] is None
    judged = [event.accepted for event in heard if event.type == "generation_judged"]
    assert judged.count(True) == 5
    assert judged.count(False) == 1
    reasons = sorted(event.reason for event in heard if event.type == "generation_discarded" and event.reason)
    assert {"rejected", "discarded"} <= set(reasons)


def test_the_targets_own_span_leaves_out_the_drafts() -> None:
    """With every draft right, the target's steps depend on drafts alone, so its span is that of one step."""
    answer, _ = run(depth=8)
    assert answer.figures["target_span"] == 10
    plain, _ = run(depth=0)
    assert plain.figures["target_span"] == 10 * STEPS


def test_an_answer_that_its_cap_ends_goes_no_further() -> None:
    """The cap is reached with further accepted drafts at hand: nothing more is asked for, and nothing written."""

    def reworded(call: Call) -> Reply:
        return replace(quick(call), chunks=(f"Step number {place(call)}",))

    def judge(call: Call) -> Reply:
        first = "number 0" in call.branch.question  # judged last, so that all are accepted at once
        return Reply(label_logprobs={"yes": -0.1, "no": -3.0}, delay_s=30.0 if first else 0.0)

    answer, backends = run(draft=reworded, judge=judge, verifier="same", depth=8, max_tokens=20)
    assert answer.text.split("\n\n")[:2] == ["Step number 0", "Step number 1"]
    assert "2" not in answer.text
    assert answer.finish_reason == "length"
    assert all("\n\n" in log.call.stop for log in backends["target"].calls)


def test_a_draft_that_is_stopped_is_discarded() -> None:
    """One that is slower than the target never gets to the end of a step; what it wrote is counted all the same."""

    def slow(call: Call) -> Reply:
        return Reply(chunks=("a",) * 30, delay_s=0.1, chunk_s=0.5)

    answer, _ = run(draft=slow, depth=1)
    assert answer.figures["drafts"] == {"accepted": 0, "rejected": 0, "discarded": STEPS}
    assert answer.figures["draft_tokens"] == {"accepted": 0, "rejected": 0, "discarded": answer.usage.wasted}
    assert answer.usage.wasted == 2 * STEPS


def test_no_draft_is_no_verdict() -> None:
    """A look-up that finds nothing is not held against drafting."""
    answer, _ = run(drafter="lookup")
    assert answer.figures["drafts"] == {"accepted": 0, "rejected": 0, "discarded": 0}
    assert answer.figures["acceptance"] is None


def test_token_level_speculation_stands_beside() -> None:
    """The mean of what the target's server reports."""
    steps = iter([2.0, 3.0, 4.0, 3.0, 3.0, 3.0])

    def target(call: Call) -> Reply:
        return replace(
            right(call), spec=SpecFigures(verify_count=5, accept_length=next(steps), accept_rate=0.5)
        )

    answer, _ = run(target, depth=0)
    assert answer.figures["accept_length"] == 3.0


def test_a_busy_target_is_given_less_to_do() -> None:
    """The depth that pays on an idle server does not on one that others keep busy: drafting then is not so far ahead."""

    async def ask(others: int) -> Answer:
        target = ScriptedBackend(lambda call: right(call) if place(call) or call.stop else Reply.hanging())
        draft = ScriptedBackend(quick)
        limits = Limits(start=16, most=16)
        async with (
            Orchestrator(target, roles={"draft": draft}, limits=limits) as orch,
            asyncio.TaskGroup() as group,
        ):
            busy = [group.create_task(orch.ask("other", strategy="sequential")) for _ in range(others)]
            await asyncio.sleep(0.01)
            answer = await orch.ask("question", strategy=Lookahead(verifier="exact", depth="auto"))
            for task in busy:
                task.cancel()
        return answer

    idle, busy = run_virtual(ask(0)), run_virtual(ask(12))
    assert idle.text == busy.text == EXPECTED
    assert cast("int", busy.figures["depth"]) < cast("int", idle.figures["depth"])
