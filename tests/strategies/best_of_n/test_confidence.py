"""DeepConf's measures, against sums over windows that are written out."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.backend import TokenLogprob
from anabranch.strategies.best_of_n.confidence import Measure, groups, of_token, of_trace

CONFIDENCES = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=60)


def test_the_confidence_of_a_token() -> None:
    """Minus the mean log-probability of its candidates; those that are impossible are not counted."""

    def token(*top: tuple[str, float]) -> TokenLogprob:
        return TokenLogprob(token="a", logprob=-0.1, top=top)

    assert of_token(token(("a", -0.1), ("b", -3.0), ("c", -5.0))) == pytest.approx(2.7)
    assert of_token(token(("a", -0.1), ("b", float("-inf")))) == pytest.approx(0.1)
    assert of_token(token()) is None


@given(confidences=CONFIDENCES, window=st.integers(1, 70))
def test_groups_are_the_means_of_all_full_windows(confidences: list[float], window: int) -> None:
    """Of a short trace the one group is all of it."""
    size = min(window, len(confidences))
    expected = [fmean(confidences[start : start + size]) for start in range(len(confidences) - size + 1)]
    assert groups(confidences, window) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [("mean", 5.5), ("tail", 9.0), ("lowest", 2.0), ("bottom", 2.0)],
)
def test_measures_by_hand(measure: Measure, expected: float) -> None:
    """Of 1 to 10 with windows of three: 2, 3, … 9."""
    assert of_trace([float(number) for number in range(1, 11)], measure, 3) == pytest.approx(expected)


def test_the_bottom_tenth_of_the_groups() -> None:
    """Of twenty-one groups of one token the lowest two count."""
    assert of_trace([float(number) for number in range(21)], "bottom", 1) == pytest.approx(0.5)
