"""ESC: windows that agree and windows that don't."""

from __future__ import annotations

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping import ESC
from voting import traces, used


@pytest.mark.parametrize(
    ("answers", "taken"),
    [
        ("aaaaa", 5),
        ("aaaab" + "aaaaa", 10),
        ("b" + "aaaaa" + "aaaa", 10),  # five in a row, but across windows; the second window agrees
        ("b" + "aaaaa" + "aaab" + "ccccc", 15),
        ("ab" * 50, 40),
        ("-----" * 8, 40),
        ("aaaa-" + "aaaaa", 10),
    ],
)
def test_the_first_window_that_agrees_ends_it(answers: str, taken: int) -> None:
    """Windows begin at 0, 5, 10, ...; a trace without an answer agrees with nothing."""
    assert used(ESC(), traces(answers)) == taken


def test_a_window_is_asked_for_at_once() -> None:
    """The wanted number is the end of the window under way."""
    assert [ESC().wanted(traces("abaaa"[:count])) for count in range(6)] == [5, 5, 5, 5, 5, 10]


def test_a_window_that_agreed_stays_enough() -> None:
    """Traces that come late change nothing."""
    assert ESC().wanted(traces("aaaaa" + "bc")) == 7


def test_a_window_cut_short_by_the_most_does_not_agree() -> None:
    """8 traces hold one window of 5."""
    rule = ESC(most=8)
    assert rule.wanted(traces("abaaa")) == 8
    assert rule.wanted(traces("abaaaaaa")) == 8


def test_the_order_decides_who_is_in_a_window() -> None:
    """The same ten answers, in two orders."""
    assert used(ESC(), traces("aaaaa" + "bbbbb")) == 5
    assert used(ESC(), traces("ababababab" + "a" * 5)) == 15


def test_bad_parameters_are_named() -> None:
    """A window of one always agrees with itself."""
    with pytest.raises(InvalidParameter, match="window"):
        ESC(window=1)
