"""Votes: small ballots by hand, ties, filters, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.confidence import Confidence, Measure
from anabranch.strategies.best_of_n.rules import MissingMeasure, Selected, Trace
from anabranch.strategies.best_of_n.selection import ConfidenceVote, MajorityVote, ScoreVote
from anabranch.strategies.best_of_n.selection.votes import Shown, kept_from
from voting import traces


def sure(answers: str, *confidences: float) -> list[Trace]:
    """Traces that are that sure of each of two tokens."""
    return [
        replace(trace, confidences=(confidence, confidence))
        for trace, confidence in zip(traces(answers), confidences, strict=True)
    ]


def scored(answers: str, *scores: float | None) -> list[Trace]:
    """Traces with scores."""
    return [replace(trace, score=score) for trace, score in zip(traces(answers), scores, strict=True)]


def test_the_majority_by_hand() -> None:
    """Three of six votes; the trace without an answer is none."""
    selected = MajorityVote().select(traces("ba-acab"))
    assert selected == Selected(number=1, answer="a", shares={"a": 1 / 2, "b": 1 / 3, "c": 1 / 6})
    assert list(selected.shares) == ["a", "b", "c"]


def test_a_cut_trace_is_no_vote() -> None:
    """Even if an answer could be read in it."""
    cut = [replace(trace, complete=False) for trace in traces("bbb")]
    selected = MajorityVote().select([*cut, Trace(number=3, answer="a")])
    assert selected == Selected(number=3, answer="a", shares={"a": 1.0})


def test_a_tie_goes_by_scores_then_by_confidences_then_by_the_order_of_asking() -> None:
    """A measure that a voter lacks decides nothing."""
    both = [replace(trace, confidences=(3.0 if trace.answer == "b" else 1.0,)) for trace in traces("abab")]
    with_scores = [replace(trace, score=1.0 if trace.answer == "a" else 0.5) for trace in both]
    one_unscored = [*with_scores[:3], replace(with_scores[3], score=None)]
    winners = [
        MajorityVote().select(some) for some in (with_scores, one_unscored, traces("abab"), traces("ba-ab"))
    ]
    assert [winner.answer if winner else None for winner in winners] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("shown", "number"), [("best", 2), ("first", 0), ("longest", 3), ("shortest", 4)])
def test_the_winners_trace_is_the_one_that_is_asked_for(shown: Shown, number: int) -> None:
    """Of four that agree; another answer's trace is never taken."""
    lengths, scores = [50, 999, 40, 70, 20], [0.1, 1.0, 0.9, 0.2, 0.3]
    voting = [
        Trace(number=place, answer="b" if place == 1 else "a", tokens=tokens, score=score)
        for place, (tokens, score) in enumerate(zip(lengths, scores, strict=True))
    ]
    selected = MajorityVote(shown=shown).select(voting)
    assert selected is not None
    assert (selected.answer, selected.number) == ("a", number)


@pytest.mark.parametrize(
    ("measure", "answer"), [("mean", "b"), ("tail", "a"), ("bottom", "b"), ("lowest", "b")]
)
def test_confident_votes_outweigh_the_majority(measure: Measure, answer: str) -> None:
    """Two traces that are sure in the end only, against one that is sure throughout."""
    voting = [replace(trace, confidences=(1.0, 1.0, 1.0, 6.0)) for trace in traces("aa")]
    voting.append(Trace(number=2, answer="b", confidences=(9.0, 9.0, 9.0, 9.0)))
    rule = ConfidenceVote(confidence=Confidence(measure=measure, window=1))
    selected = rule.select(voting)
    assert selected is not None
    assert selected.answer == answer
    shares = {"mean": 9 / 13.5, "tail": 12 / 21, "bottom": 9 / 11, "lowest": 9 / 11}
    assert selected.shares[answer] == pytest.approx(shares[measure])


def test_the_filter_keeps_the_confident_side() -> None:
    """Of ten, a tenth is the surest one; nine tenths are all but the least sure, which alone would outweigh nobody."""
    voting = sure("aaaaaaaabc", 1, 1, 1, 1, 1, 1, 1, 1, 8, 0.5)
    kept = {keep: ConfidenceVote(keep=keep).select(voting) for keep in (0.1, 0.9, 1.0)}
    assert kept[0.1] == Selected(number=8, answer="b", shares={"b": 1.0})
    assert kept[0.9] is not None
    assert kept[0.9].shares == {"a": 0.5, "b": 0.5}
    assert kept[0.9].answer == "a"
    assert kept[1.0] is not None
    assert set(kept[1.0].shares) == {"a", "b", "c"}


@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    keep=st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]),
)
def test_the_filter_keeps_what_the_published_percentile_keeps(values: list[int], keep: float) -> None:
    """Those at or above the interpolated (1 - keep) percentile, within what rounding may do to that."""
    published = float(np.percentile(values, 100 * (1 - keep))) - 1e-9
    least = kept_from(values, keep)
    assert [value >= least for value in values] == [value >= published for value in values]


def test_score_weighted_votes_by_hand() -> None:
    """0.9 against twice 0.4; the winner's best trace is taken."""
    selected = ScoreVote().select(scored("aabb", 0.4, 0.4, 0.2, 0.7))
    assert selected is not None
    assert (selected.answer, selected.number) == ("b", 3)
    assert selected.shares == pytest.approx({"b": 0.9 / 1.7, "a": 0.8 / 1.7})


def test_votes_that_all_weigh_nothing_are_a_tie() -> None:
    """It goes to the answer of the trace that was asked for first."""
    selected = ScoreVote().select(scored("ba", 0.0, 0.0))
    assert selected == Selected(number=0, answer="b", shares={"b": 0.5, "a": 0.5})


def test_a_voter_without_the_measure_is_an_error_that_names_it() -> None:
    """Those who don't vote need none."""
    with pytest.raises(MissingMeasure) as raised:
        ScoreVote().select(scored("a-bb", 0.5, None, None, None))
    assert (raised.value.need, raised.value.numbers) == ("scores", (2, 3))
    with pytest.raises(MissingMeasure) as raised:
        ConfidenceVote().select([*sure("a", 1.0), Trace(number=4, answer="b")])
    assert (raised.value.need, raised.value.numbers) == ("confidences", (4,))
    assert ScoreVote().select(scored("a-", 0.5, None)) is not None


@pytest.mark.parametrize("score", [-0.1, float("nan"), float("inf")])
def test_a_score_that_can_be_no_weight_is_refused(score: float) -> None:
    """Raw rewards are to be mapped first."""
    with pytest.raises(InvalidParameter) as raised:
        ScoreVote().select(scored("ab", 0.5, score))
    assert raised.value.field == "score"


def test_bad_parameters_are_named() -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter, match="keep"):
        ConfidenceVote(keep=0.0)
    with pytest.raises(InvalidParameter, match="shown"):
        MajorityVote(shown="newest")  # type: ignore[arg-type]
