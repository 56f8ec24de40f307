"""The difficulty prior: order, boundary, preallocation, and the rule of one question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping import Preallocated, boundary, preallocation, rank
from voting import traces, used


def test_questions_are_ordered_by_their_mean_place() -> None:
    """b is at 1/4 and 1/6, a at 3/4 and 1/2, c at 5/6."""
    assert rank([["b", "a"], ["b", "a", "c"]]) == ("b", "a", "c")
    assert rank([["x", "y"], ["y", "x"]]) == ("x", "y")
    assert rank([]) == ()


@given(st.permutations("abcdefgh"))
def test_consistent_batches_give_back_the_order(order: list[str]) -> None:
    """With all pairs as batches, the order that they were taken from."""
    pairs = [(easy, hard) for place, easy in enumerate(order) for hard in order[place + 1 :]]
    assert rank(pairs) == tuple(order)


@pytest.mark.parametrize(
    ("agreed", "hard"),
    [
        ([], None),
        ([True, True], None),
        ([True, True, True], 3),
        ([False, True, True, True, False], 4),
        ([True, True, False, True, True], None),
    ],
)
def test_a_window_of_questions_that_agree_ends_the_hard_ones(agreed: list[bool], hard: int | None) -> None:
    """With windows of three; what was tried is hard, the rest is easy."""
    assert boundary(agreed, window=3) == hard


def test_a_question_gets_what_its_neighbours_needed() -> None:
    """The mean of the last of them, rounded up."""
    assert preallocation([]) == 1
    assert preallocation([40, 40, 4, 5], window=2) == 5
    assert preallocation([4, 8, 9]) == 7


def test_a_first_lot_then_extensions() -> None:
    """Seven at once; four more where they don't settle it."""
    rule = Preallocated(first=7)
    assert rule.wanted([]) == rule.wanted(traces("aaaaaa")) == 7
    assert rule.wanted(traces("aaaabaa")) == 7
    assert rule.wanted(traces("aaaabbb")) == 11
    assert used(rule, traces("ab" * 30)) == 40


def test_what_was_needed_is_less_than_what_was_asked_for() -> None:
    """So that a lot that was too large does not enlarge the next one."""
    rule = Preallocated(first=10)
    assert rule.needed(traces("aaaaaaaaaa")) == 4
    assert rule.needed(traces("ab" * 5)) == 10


def test_bad_parameters_are_named() -> None:
    """Whichever it is."""
    with pytest.raises(InvalidParameter, match="first"):
        Preallocated(first=0)
    with pytest.raises(InvalidParameter, match="step"):
        Preallocated(first=1, step=0)
    with pytest.raises(InvalidParameter, match="window"):
        boundary([], window=0)
