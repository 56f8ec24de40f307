"""DeepConf online: the warm-up, which side the threshold keeps, and when a trace stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.confidence import Window
from anabranch.strategies.best_of_n.pruning import LowConfidence
from anabranch.strategies.best_of_n.rules import MissingMeasure, Trace

RULE = LowConfidence(warm_up=5, window=2)


def sure(number: int, *confidences: float, complete: bool = True) -> Trace:
    """A trace with these confidences."""
    return Trace(number=number, confidences=confidences, tokens=len(confidences), complete=complete)


WARM_UP = [sure(number, 9, 9 - 2 * number, 9 - 2 * number) for number in range(5)]
"""Their lowest groups are 9, 7, 5, 3, 1."""


def test_the_published_numbers_are_the_defaults() -> None:
    """16 traces of warm-up, groups of 2048 tokens, nine tenths kept as in the published package."""
    assert (LowConfidence().warm_up, LowConfidence().window, LowConfidence().keep) == (16, 2048, 0.9)


@pytest.mark.parametrize(("keep", "threshold"), [(1.0, 1.0), (0.9, 1.8), (0.75, 3.0), (0.5, 5.0), (0.1, 8.2)])
def test_keep_is_the_side_that_is_kept(keep: float, threshold: float) -> None:
    """Of 1 3 5 7 9, interpolated by hand: the more is kept, the lower is the threshold."""
    rule = LowConfidence(keep=keep, warm_up=5, window=2)
    assert rule.threshold(WARM_UP) == pytest.approx(threshold)
    kept = sum(1 for number in range(5) if 9 - 2 * number >= threshold)
    running = [sure(10 + n, 9, 9 - 2 * n, 9 - 2 * n, complete=False) for n in range(5)]
    assert len(rule.pruned(running, WARM_UP)) == 5 - kept


def test_there_is_no_threshold_before_the_warm_up_is_over() -> None:
    """Cut traces are not part of it; those after it change nothing."""
    low = [sure(10, 0, 0, complete=False)]
    cut = sure(7, 0, 0, complete=False)
    assert RULE.threshold([*WARM_UP[:4], cut]) is None
    assert RULE.pruned(low, [*WARM_UP[:4], cut]) == frozenset()
    assert RULE.pruned(low, WARM_UP) == {10}
    assert RULE.threshold([cut, *WARM_UP, sure(8, 0, 0)]) == RULE.threshold(WARM_UP)


def test_a_trace_stops_by_a_full_window_alone() -> None:
    """At 1.8: two tokens of mean 1.7, anywhere; one token of 0 is no group, and 1.8 itself is not below."""
    running = {
        10: (0.0,),
        11: (1.7, 1.7),
        12: (9.0, 0.0, 9.0),
        13: (9.0, 1.6, 1.8, 9.0, 9.0),
        14: (),
        15: (4.0, 4.0),
    }
    some = [sure(number, *confidences, complete=False) for number, confidences in running.items()]
    assert RULE.pruned(some, WARM_UP) == {11, 13}
    edge = LowConfidence(keep=0.75, warm_up=5, window=2)
    assert edge.pruned([sure(20, 3, 3, complete=False)], WARM_UP) == frozenset()


@given(confidences=st.lists(st.integers(0, 9), max_size=12), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_window_fed_by_tokens_says_the_same(confidences: list[int], keep: float) -> None:
    """What a caller may do instead of asking the rule after each token."""
    rule, window = LowConfidence(keep=keep, warm_up=5, window=3), Window(3)
    for confidence in confidences:
        window.add(confidence)
    threshold = rule.threshold(WARM_UP)
    assert threshold == pytest.approx(np.percentile([9, 23 / 3, 19 / 3, 5, 11 / 3], 100 * (1 - keep)))
    assert threshold is not None
    stops = window.full and window.lowest < threshold
    assert bool(rule.pruned([sure(9, *confidences, complete=False)], WARM_UP)) == stops


def test_missing_confidences_are_an_error_where_there_are_tokens() -> None:
    """In a running trace, also before the warm-up is over, and in one of the warm-up; a trace that has not begun is none."""
    blind = Trace(number=7, tokens=5)
    for running, ended in (([blind], []), ([blind], WARM_UP), ([], [blind])):
        with pytest.raises(MissingMeasure) as raised:
            RULE.pruned(running, ended)
        assert raised.value.numbers == (7,)
    assert RULE.pruned([Trace(number=8)], []) == frozenset()


@pytest.mark.parametrize("field", ["keep", "warm_up", "window"])
def test_bad_parameters_are_named(field: str) -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter) as raised:
        LowConfidence(**{field: 0})
    assert raised.value.field == field
