"""Adaptive-Consistency: each criterion at the votes where it turns, and the risk that it takes."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import (
    AdaptiveConsistency,
    Beta,
    Criterion,
    Dirichlet,
    Entropy,
    Majority,
)
from voting import traces, used

CRITERIA = [Beta(), Dirichlet(), Entropy(), Majority()]


@pytest.mark.parametrize(
    ("criterion", "votes", "met"),
    [
        (Beta(), (3,), False),  # 15/16
        (Beta(), (4,), True),  # 31/32
        (Beta(), (6, 1), True),  # 1 - (C(8,7) + C(8,8)) / 2^8 = 0.965
        (Beta(), (5, 1), False),  # 1 - (C(7,6) + C(7,7)) / 2^7 = 0.9375
        (Beta(confidence=0.9), (5, 1), True),
        (Dirichlet(), (3,), False),
        (Dirichlet(), (4,), True),
        (Dirichlet(), (5, 2, 1), False),  # 0.818
        (Dirichlet(top=2), (6, 1, 1, 1, 1), True),
        (Dirichlet(), (6, 1, 1, 1, 1), False),
        (Entropy(), (1,), False),
        (Entropy(), (3,), False),  # of (3, 1): 0.811 bits of 1
        (Entropy(), (4,), True),  # of (4, 1): 0.722
        (Entropy(), (4, 1), True),
        (Entropy(), (3, 1), False),
        (Entropy(), (6, 1, 1), True),  # 1.061 bits of 1.585
        (Entropy(), (4, 1, 1), False),  # 1.252
        (Majority(), (1,), False),
        (Majority(), (2,), True),
        (Majority(), (4, 1), True),
        (Majority(), (7, 2), False),
    ],
)
def test_each_criterion_turns_where_the_arithmetic_says(
    criterion: Criterion, votes: tuple[int, ...], met: bool
) -> None:
    """Values by hand, in the comments."""
    assert criterion.met(votes) is met


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_tie_settles_nothing(criterion: Criterion) -> None:
    """Two answers with as many votes each, however many."""
    assert not any(criterion.met((count, count)) for count in range(1, 30))


def test_four_equal_answers_are_enough() -> None:
    """One trace at a time, up to the fourth."""
    rule = AdaptiveConsistency()
    assert [rule.wanted(traces("a" * count)) for count in range(6)] == [1, 2, 3, 4, 4, 5]


def test_traces_without_answers_are_used_up_but_do_not_vote() -> None:
    """Three of them among four equal answers make seven; nothing but them goes on to the end."""
    assert used(AdaptiveConsistency(), traces("a-a--aaaa")) == 7
    assert used(AdaptiveConsistency(most=12), traces("-" * 50)) == 12


def test_the_stated_risk_holds_over_questions_of_all_kinds() -> None:
    """Over questions drawn from the prior, at most 5 % of settled votes have another most probable answer, although
    the votes are looked at after each trace."""
    rng = random.Random(20)
    rule = AdaptiveConsistency(criterion=Beta(), most=300)
    settled = wrong = 0
    for _ in range(1500):
        chance = rng.random()
        pool = [Trace(number=k, answer="ab"[rng.random() > chance]) for k in range(300)]
        taken = used(rule, pool)
        if taken < 300:
            settled += 1
            top = Counter(trace.answer for trace in pool[:taken]).most_common(1)[0][0]
            wrong += top != ("a" if chance > 0.5 else "b")
    assert settled > 1300
    assert wrong / settled <= 0.05


def test_the_vote_of_a_whole_pool_is_seldom_another() -> None:
    """Of pools of 41 votes for two answers, drawn from the prior, the settled vote differs for at most 5 %."""
    rng = random.Random(22)
    rule = AdaptiveConsistency(criterion=Beta(), most=41)
    differ = 0
    for _ in range(3000):
        chance = rng.random()
        pool = traces("".join("ab"[rng.random() > chance] for _ in range(41)))
        early, full = (Counter(t.answer for t in some) for some in (pool[: used(rule, pool)], pool))
        differ += early.most_common(1)[0][0] != full.most_common(1)[0][0]
    assert differ / 3000 <= 0.05


def recorded_votes(questions: int) -> list[list[Trace]]:
    """The answers of 41 or 42 models to each of some questions of GSM8K."""
    path = (
        Path(os.environ.get("ANABRANCH_TEST_DATA", "data"))
        / "traces"
        / "zeroeval_gsm8k_42models_votes.jsonl.gz"
    )
    if not path.exists():
        pytest.skip(f"no {path}; set ANABRANCH_TEST_DATA to a folder with recorded votes on GSM8K")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(questions), strict=False)]
    return [[Trace(number=k, answer=sample["ans"]) for k, sample in enumerate(row["samples"])] for row in rows]


@pytest.mark.parametrize("criterion", [Beta(), Dirichlet()])
def test_on_recorded_votes_stopping_early_seldom_changes_the_answer(criterion: Criterion) -> None:
    """In random order, the early vote differs from the vote of all 41 models for at most 5 % of the questions."""
    rng = random.Random(21)
    rule = AdaptiveConsistency(criterion=criterion, most=42)
    pools = recorded_votes(300)
    differ = taken = 0
    for pool in pools:
        shuffled = rng.sample(pool, len(pool))
        count = used(rule, shuffled)
        taken += count
        early, full = (Counter(t.answer for t in some if t.answer) for some in (shuffled[:count], pool))
        differ += full[early.most_common(1)[0][0]] < max(full.values())
    assert differ / len(pools) <= 0.05
    assert taken / len(pools) < 42 / 3


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Beta(confidence=1.0), "confidence"),
        (lambda: Dirichlet(confidence=0.0), "confidence"),
        (lambda: Dirichlet(top=1), "top"),
        (lambda: Entropy(at_most=1.5), "at_most"),
        (lambda: Majority(share=0.0), "share"),
        (lambda: Majority(share=float("nan")), "share"),
        (lambda: AdaptiveConsistency(most=0), "most"),
    ],
)
def test_bad_parameters_are_named(make: object, field: str) -> None:
    """The error says which field."""
    assert callable(make)
    with pytest.raises(InvalidParameter) as raised:
        make()
    assert raised.value.field == field
