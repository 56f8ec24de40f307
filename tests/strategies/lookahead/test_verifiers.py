"""The verifiers: what each asks of whom, what it accepts, and what becomes of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from anabranch import Answer, Orchestrator, RetryPolicy
from anabranch.orchestrator.backend import Call, Capabilities
from anabranch.orchestrator.errors import BackendUnavailable, UnsupportedCapability
from anabranch.strategies.logits import sigmoid
from anabranch.strategies.lookahead import Lookahead, rsd, specreason, ssr
from anabranch.strategies.lookahead.steps import numbers
from anabranch.strategies.lookahead.verifiers import cosine
from anabranch.testing import Reply, ScriptedBackend, run_virtual

STEPS = 4
Script = Callable[[Call], Reply]


def writer(word: str, *, delay_s: float) -> Script:
    """Writes steps that begin with this word; the last one ends the answer. Measures and rates nothing of use."""

    def reply(call: Call) -> Reply:
        if call.labels:
            return Reply(label_logprobs=dict.fromkeys(call.labels, -1.0))
        place = call.branch.text.count("\n\n")
        last = place == STEPS - 1
        return Reply(chunks=(f"{word} {place}",), delay_s=delay_s, tokens=10, matched=None if last else "\n\n")

    return reply


def run(
    strategy: Lookahead, *, target: Script | None = None, **roles: Script
) -> tuple[Answer, Mapping[str, ScriptedBackend], list[Any]]:
    """An answer whose target says "own" and whose draft says "drafted"; the models, and the run's events."""
    scripts = {"draft": writer("drafted", delay_s=0.1), **roles}
    backends = {name: ScriptedBackend(script, name=name) for name, script in scripts.items()}
    heard: list[Any] = []

    async def ask() -> Answer:
        own = ScriptedBackend(target or writer("own", delay_s=1.0))
        async with Orchestrator(own, roles=backends, retry=RetryPolicy(attempts=1)) as orch:
            return await orch.ask("question", strategy=strategy, listeners=[heard.append])

    answer = run_virtual(ask())
    assert not any(backend.running for backend in backends.values())
    return answer, backends, heard


def text(word: str) -> str:
    return "\n\n".join(f"{word} {place}" for place in range(STEPS))


@pytest.mark.parametrize(("towards", "accepted"), [((1.0, 0.1), True), ((1.0, 0.5), False)])
def test_embeddings_that_point_the_same_way(towards: tuple[float, float], accepted: bool) -> None:
    """The cosine of the two steps' embeddings decides: 0.995 is above 0.95, 0.894 is not."""

    def embed(call: Call) -> Reply:
        assert call.measure == "embedding"
        return Reply(measured=(1.0, 0.0) if call.branch.last_turn.startswith("own") else towards)

    answer, backends, _ = run(Lookahead(verifier="embedding"), embedder=embed)
    assert answer.text == text("drafted" if accepted else "own")
    embedded = {log.call.branch.last_turn for log in backends["embedder"].calls}
    assert embedded >= {"own 0", "drafted 0"}


@pytest.mark.parametrize(
    ("value", "logit", "accepted"),
    [(0.9, True, True), (0.8, True, False), (0.8, False, True), (0.69, False, False)],
)
def test_rewards_on_either_scale(value: float, logit: bool, accepted: bool) -> None:
    """RSD's 0.7 is on a scale from 0 to 1: a logit of 0.9 is 0.71 there, one of 0.8 is 0.69."""

    def reward(call: Call) -> Reply:
        assert call.measure == "reward"
        assert call.branch.text.endswith("\n\n") or call.branch.text.endswith(str(STEPS - 1))
        return Reply(measured=(value,))

    answer, _, _ = run(rsd(reward_is_logit=logit), scorer=reward)
    assert answer.text == text("drafted" if accepted else "own")
    own_steps = [record for record in answer.generations if record.role == "target"]
    assert len(own_steps) == (0 if accepted else STEPS)


@pytest.mark.parametrize(("logprobs", "accepted"), [((-0.1, -1.2), True), ((-0.1, -1.4), False)])
def test_the_likelihood_of_a_draft(logprobs: tuple[float, ...], accepted: bool) -> None:
    """The mean over its tokens counts: exp(-0.65) is above a half, exp(-0.75) is not."""
    own = writer("own", delay_s=1.0)

    def target(call: Call) -> Reply:
        return Reply(measured=logprobs) if call.measure == "likelihood" else own(call)

    answer, _, heard = run(Lookahead(verifier="likelihood", depth=1), target=target)
    assert answer.text == text("drafted" if accepted else "own")
    verdict = next(event for event in heard if event.type == "generation_judged")
    assert (verdict.by, verdict.accepted) == ("likelihood", accepted)
    assert verdict.score == pytest.approx(math.exp(sum(logprobs) / 2))


@pytest.mark.parametrize(
    ("strategy", "accepted"), [(specreason(), True), (ssr(), False), (specreason(threshold=8), False)]
)
def test_a_rating_is_the_likeliest_digit_or_the_mean(strategy: Lookahead, accepted: bool) -> None:
    """7 is likeliest, and 6.6 the mean: SpecReason's greedy rating accepts that, SSR's mean does not."""
    own = writer("own", delay_s=1.0)

    def target(call: Call) -> Reply:
        likely = {"7": math.log(0.6), "6": math.log(0.4)}
        return (
            Reply(label_logprobs={**dict.fromkeys(call.labels, -1e9), **likely}) if call.labels else own(call)
        )

    answer, _, _ = run(strategy, target=target)
    assert answer.text == text("drafted" if accepted else "own")


@pytest.mark.parametrize("verifier", ["rating", "reward", "likelihood"])
def test_when_a_verifier_that_stands_alone_fails_the_target_goes_on(verifier: Any) -> None:
    """The answer is the target's, and a warning says what failed."""
    own = writer("own", delay_s=1.0)
    down = Reply.failing(BackendUnavailable("it is down", retryable=False))

    def target(call: Call) -> Reply:
        if call.labels or call.measure:
            return down
        return Reply.of(text("own")) if "\n\n" not in call.stop else own(call)

    answer, _, _ = run(Lookahead(verifier=verifier), target=target, scorer=lambda call: down)
    assert answer.text.split() == text("own").split()
    assert any("it is down" in warning and "goes on plainly" in warning for warning in answer.warnings)


def test_a_verifier_that_compares_and_fails_leaves_exact_matches() -> None:
    """Without its embeddings the answer is the target's."""
    down = Reply.failing(BackendUnavailable("it is down", retryable=False))
    answer, _, _ = run(Lookahead(verifier="embedding"), embedder=lambda call: down)
    assert answer.text == text("own")
    assert any("only exact matches" in warning for warning in answer.warnings)


def test_an_exact_match_needs_no_verifier() -> None:
    """It is accepted before anybody is asked, and the trace says by what."""
    asked: list[Call] = []

    def embed(call: Call) -> Reply:
        asked.append(call)
        return Reply(measured=(1.0,))

    answer, _, heard = run(Lookahead(verifier="embedding"), draft=writer("OWN ", delay_s=0.1), embedder=embed)
    assert asked == []
    assert answer.text.casefold().split() == text("own").split()
    assert {
        (event.by, event.accepted, event.score) for event in heard if event.type == "generation_judged"
    } == {("exact", True, None)}


@pytest.mark.parametrize("verifier", ["rating", "reward", "likelihood"])
def test_the_synchronous_form_compares(verifier: Any) -> None:
    """A verifier that looks at the draft alone does not go with it; the error says so."""
    with pytest.raises(ValidationError, match="in_step compares"):
        Lookahead(verifier=verifier, in_step=True)


@pytest.mark.parametrize(
    ("verifier", "role"), [("embedding", "embedder"), ("reward", "scorer"), ("likelihood", "target")]
)
def test_what_cannot_be_measured_is_refused_before_the_first_token(verifier: Any, role: str) -> None:
    """The error names the role and what its server lacks."""
    nobody = ScriptedBackend([], capabilities=Capabilities(prefill=True))

    async def ask() -> None:
        async with Orchestrator(nobody) as orch:
            with pytest.raises(UnsupportedCapability, match=f"needs {verifier} for its {role}"):
                await orch.ask("question", strategy=Lookahead(verifier=verifier))

    run_virtual(ask())
    assert nobody.calls == []


def test_cosine_and_sigmoid() -> None:
    """Direction counts, not length; nothing has no direction; no logit is too great."""
    assert cosine((3.0, 0.0), (5.0, 0.0)) == pytest.approx(1.0)
    assert cosine((1.0, 0.0), (0.0, 2.0)) == 0.0
    assert cosine((1.0, 1.0), (-1.0, -1.0)) == pytest.approx(-1.0)
    assert cosine((0.0, 0.0), (1.0, 0.0)) == 0.0
    assert sigmoid(0.0) == 0.5
    assert sigmoid(math.log(3.0)) == pytest.approx(0.75)
    assert (sigmoid(1e6), sigmoid(-1e6)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("So 7 * 180 = 1260.", "Thus $180 times 7$ …", False),  # in another order, and one is missing
        ("She pays 3.50 for 2,000 of them.", "It costs $3.5; there are 2000 of it", True),
        ("007 apples", "7.0 pears", True),
        ("from 1,2 and 3", "from 1, 2, 3", True),
        ("10 apples", "1 apple", False),
        ("0 left", "0.0 left", True),
    ],
)
def test_numbers_are_read_as_values(first: str, second: str, same: bool) -> None:
    """Thousands separators, leading zeros and zeros behind the point make no other number."""
    assert (numbers(first) == numbers(second)) is same


@pytest.mark.parametrize(("draft", "accepted"), [("we have 7 + {}", True), ("we have 8 + {}", False)])
def test_drafts_with_the_same_numbers_are_accepted(draft: str, accepted: bool) -> None:
    """A draft in other words is taken for its numbers."""

    def saying(words: str, delay_s: float) -> Script:
        def reply(call: Call) -> Reply:
            place = call.branch.text.count("\n\n")
            ends = None if place == STEPS - 1 else "\n\n"
            return Reply(chunks=(words.format(place),), delay_s=delay_s, tokens=10, matched=ends)

        return reply

    answer, _, _ = run(
        Lookahead(verifier="numbers"), target=saying("so 7 and {}", 1.0), draft=saying(draft, 0.1)
    )
    drafts = answer.figures["drafts"]
    assert isinstance(drafts, dict)
    assert (drafts["accepted"] > 0, drafts["rejected"] > 0) == (accepted, not accepted)
    assert ("we have" in answer.text) is accepted


def test_without_numbers_steps_are_not_the_same_for_their_numbers() -> None:
    """Two steps that have no number agree in nothing."""

    def saying(letter: str) -> Script:
        def reply(call: Call) -> Reply:
            place = call.branch.text.count("\n\n")
            return Reply(
                chunks=(letter * (place + 1),), tokens=10, matched=None if place == STEPS - 1 else "\n\n"
            )

        return reply

    answer, _, _ = run(Lookahead(verifier="numbers"), target=saying("a"), draft=saying("b"))
    assert "b" not in answer.text
