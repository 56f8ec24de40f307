"""Allocation of one budget over many questions, against trying everything."""

from __future__ import annotations

from itertools import combinations, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping import allocate, best_score_gains, success_gains

CURVES = st.lists(
    st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda curve: sorted(curve, reverse=True)),
    min_size=1,
    max_size=4,
)


def total(gains: list[list[float]], given: tuple[int, ...]) -> float:
    return sum(sum(curve[:count]) for curve, count in zip(gains, given, strict=True))


@given(CURVES, st.integers(0, 12))
def test_no_other_allocation_gains_more(gains: list[list[float]], budget: int) -> None:
    """Against all allocations within the budget."""
    chosen = allocate(gains, budget)
    every = product(*(range(len(curve) + 1) for curve in gains))
    best = max(total(gains, each) for each in every if sum(each) <= budget)
    assert sum(chosen) <= budget
    assert total(gains, chosen) == pytest.approx(best)


@given(CURVES, st.integers(0, 11))
def test_a_larger_budget_takes_nothing_away(gains: list[list[float]], budget: int) -> None:
    """Each question keeps what it had."""
    before, after = allocate(gains, budget), allocate(gains, budget + 1)
    assert all(old <= new for old, new in zip(before, after, strict=True))


def test_traces_go_where_they_gain_most() -> None:
    """Half-known questions gain more from a second trace than an easy one; a hopeless one gets none."""
    gains = [success_gains(chance, 8) for chance in (0.95, 0.5, 0.3, 0.0)]
    assert allocate(gains, 6) == (1, 2, 3, 0)


def test_what_gains_nothing_is_not_paid_for() -> None:
    """A budget that is larger than what there is to gain is not used up."""
    assert allocate([[0.5, 0.0, 0.0], [0.25, 0.0]], 4) == (1, 1)


def test_each_question_may_be_promised_a_trace() -> None:
    """Also the one that has nothing to gain."""
    gains = [success_gains(chance, 8) for chance in (0.95, 0.5, 0.3, 0.0)]
    assert allocate(gains, 6, least=1) == (1, 2, 2, 1)


def test_equal_gains_go_to_the_first() -> None:
    """So the same curves always give the same allocation."""
    assert allocate([[0.5, 0.5], [0.5, 0.5]], 3) == (2, 1)


@given(st.floats(0.0, 1.0), st.integers(1, 30))
def test_gains_of_success_add_up_to_at_least_one_success(chance: float, most: int) -> None:
    """1 - (1-p)^k."""
    assert sum(success_gains(chance, most)) == pytest.approx(1 - (1 - chance) ** most)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7))
def test_gains_of_the_best_score_are_those_of_all_subsets(scores: list[float]) -> None:
    """The mean of the greatest over all subsets of each size; and the curve never rises."""
    gains = best_score_gains(scores)
    for size in range(1, len(scores) + 1):
        assert sum(gains[:size]) == pytest.approx(fmean(map(max, combinations(scores, size))))
    allocate([gains], len(scores))


def test_mistakes_are_named() -> None:
    """A curve that rises, a budget too small for the promise, a chance that is none."""
    with pytest.raises(InvalidParameter, match=r"gains\[1\].*rises"):
        allocate([[0.5], [0.1, 0.2]], 1)
    with pytest.raises(InvalidParameter, match="budget"):
        allocate([[0.5], [0.1]], 1, least=1)
    with pytest.raises(InvalidParameter, match="length"):
        allocate([[0.5], []], 2, least=1)
    with pytest.raises(InvalidParameter, match="chance"):
        success_gains(1.1, 3)
