"""DeepConf's measures, against the definitions written out, and the window that is fed by tokens against both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.confidence import (
    BOTTOM,
    TOP,
    WINDOW,
    Confidence,
    Measure,
    Window,
    group_means,
    token_confidence,
)
from anabranch.strategies.best_of_n.rules import MissingMeasure, Trace

MEASURES: tuple[Measure, ...] = ("mean", "tail", "bottom", "lowest")
SERIES = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=60)


def by_definition(confidences: Sequence[float], window: int, measure: Measure) -> float:
    """Every group summed up for itself."""
    starts = range(max(1, len(confidences) - window + 1))
    groups = sorted(fmean(confidences[start : start + window]) for start in starts)
    return {
        "mean": fmean(confidences),
        "tail": fmean(confidences[-window:]),
        "bottom": fmean(groups[: max(1, len(groups) // 10)]),
        "lowest": groups[0],
    }[measure]


def test_the_published_numbers_are_the_defaults() -> None:
    """20 candidates, groups of 2048 tokens, a tenth of the groups."""
    assert (TOP, WINDOW, BOTTOM) == (20, 2048, 0.1)
    assert Confidence().window == Window().size == 2048


def test_a_tokens_confidence_by_hand() -> None:
    """Minus the mean of log 0.5, log 0.25, log 0.25; of the first two, 1.5 log 2."""
    candidates = [math.log(0.25), math.log(0.5), math.log(0.25)]
    assert token_confidence(candidates) == pytest.approx(math.log(2) * 5 / 3)
    assert token_confidence(candidates, top=2) == pytest.approx(math.log(2) * 3 / 2)


def test_only_the_twenty_likeliest_candidates_count() -> None:
    """The others may be as unlikely as they like, and those that can't come are left out."""
    assert token_confidence([-1.0] * 20 + [-900.0] * 5) == 1.0
    assert token_confidence([-2.0, -math.inf, -4.0]) == 3.0


@pytest.mark.parametrize("logprobs", [[], [-math.inf], [-1.0, math.nan]])
def test_a_token_without_a_usable_candidate_is_an_error(logprobs: list[float]) -> None:
    """Never a confidence that nobody has measured."""
    with pytest.raises(InvalidParameter):
        token_confidence(logprobs)


def test_the_measures_by_hand() -> None:
    """Groups of two of 1 5 3 1 9 have the means 3 4 2 5."""
    trace = Trace(number=0, confidences=(1, 5, 3, 1, 9))
    values = {measure: Confidence(measure=measure, window=2)(trace) for measure in MEASURES}
    assert values == pytest.approx({"mean": 3.8, "tail": 5.0, "bottom": 2.0, "lowest": 2.0})
    assert Confidence(measure="bottom", window=2, share=0.5)(trace) == pytest.approx(2.5)
    assert Confidence(measure="bottom", window=2, share=1.0)(trace) == pytest.approx(3.5)


@given(series=SERIES, window=st.integers(1, 20))
def test_each_measure_is_as_defined(series: list[float], window: int) -> None:
    """Also where the trace is shorter than a window, or as long."""
    trace = Trace(number=0, confidences=tuple(series))
    for measure in MEASURES:
        found = Confidence(measure=measure, window=window)(trace)
        assert found == pytest.approx(by_definition(series, window, measure), abs=1e-9)


@given(series=SERIES, size=st.integers(1, 20))
def test_a_window_fed_by_tokens_has_the_same_measures_after_each(series: list[float], size: int) -> None:
    """Each prefix is a trace."""
    window = Window(size)
    for end, confidence in enumerate(series, start=1):
        window.add(confidence)
        fed = (window.mean, window.tail, window.bottom(), window.lowest)
        defined = [by_definition(series[:end], size, measure) for measure in MEASURES]
        assert fed == pytest.approx(defined, abs=1e-9)
        assert window.full == (end >= size)
        assert window.tokens == end


def test_rounding_does_not_add_up_over_a_long_trace() -> None:
    """After a great value has left the window nothing of it remains, in either way."""
    series = [1e12, *([0.1, 0.7] * 20_000)]
    window = Window(64)
    for confidence in series:
        window.add(confidence)
    assert window.tail == pytest.approx(0.4, abs=1e-12)
    assert group_means(series[1:], 64).min() == pytest.approx(0.4, abs=1e-9)


def test_what_is_missing_is_named() -> None:
    """A trace without confidences has none; a window without tokens neither."""
    with pytest.raises(MissingMeasure) as raised:
        Confidence()(Trace(number=7))
    assert (raised.value.need, raised.value.numbers) == ("confidences", (7,))
    assert isinstance(raised.value, ValueError)
    for measure in ("mean", "tail", "lowest"):
        with pytest.raises(ValueError, match="without tokens"):
            getattr(Window(), measure)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_confidence_that_is_not_finite_is_an_error(value: float) -> None:
    """It would spoil every mean after it."""
    with pytest.raises(InvalidParameter):
        Window(2).add(value)
    with pytest.raises(InvalidParameter):
        group_means([1.0, value], 2)


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"measure": "median"}, "measure"), ({"window": 0}, "window"), ({"share": 0.0}, "share")],
)
def test_bad_parameters_are_named(settings: dict[str, object], field: str) -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter) as raised:
        Confidence(**settings)  # type: ignore[arg-type]
    assert raised.value.field == field
