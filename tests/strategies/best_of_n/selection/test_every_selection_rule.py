"""What holds for each selection rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.strategies.best_of_n.confidence import Confidence
from anabranch.strategies.best_of_n.rules import MissingMeasure, SelectionRule, Trace
from anabranch.strategies.best_of_n.selection import (
    BestScore,
    ConfidenceVote,
    First,
    Longest,
    MajorityVote,
    ScoreVote,
)

EVERY: list[SelectionRule] = [
    MajorityVote(),
    MajorityVote(shown="longest"),
    ConfidenceVote(),
    *(ConfidenceVote(confidence=Confidence(measure=m, window=3), keep=0.4) for m in ("mean", "tail", "bottom")),
    ScoreVote(),
    BestScore(),
    Longest(),
    First(),
]
TRACES = st.lists(
    st.builds(
        Trace,
        number=st.just(0),
        answer=st.sampled_from(["a", "b", "c", None]),
        tokens=st.integers(0, 3),
        complete=st.booleans(),
        confidences=st.lists(st.sampled_from([0.1, 0.2, 0.3, 7.0]), min_size=1, max_size=8).map(tuple),
        score=st.sampled_from([0.1, 0.2, 0.3, 0.7]),
    ),
    max_size=12,
).map(lambda some: [replace(trace, number=number) for number, trace in enumerate(some)])

each_rule = pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)


@each_rule
@given(traces=TRACES, data=st.data())
def test_order_of_arrival_changes_nothing(
    rule: SelectionRule, traces: list[Trace], data: st.DataObject
) -> None:
    """The decision is the same to the last bit of its shares, ties included."""
    assert rule.select(data.draw(st.permutations(traces))) == rule.select(traces)


@each_rule
@given(traces=TRACES)
def test_what_is_selected_came_to_its_end_with_that_answer(rule: SelectionRule, traces: list[Trace]) -> None:
    """Shares are of votes, sum up to 1, and fall; where a trace votes, one with an answer is taken."""
    selected = rule.select(traces)
    if selected is None:
        assert not any(trace.complete for trace in traces)
        return
    taken = traces[selected.number]
    assert taken.complete
    assert taken.answer == selected.answer
    votes = {trace.answer for trace in traces if trace.complete} - {None}
    assert (selected.answer is not None) == bool(votes)
    assert set(selected.shares) <= votes
    assert sum(selected.shares.values()) == pytest.approx(1.0 if votes else 0.0)
    assert list(selected.shares.values()) == sorted(selected.shares.values(), reverse=True)


@each_rule
def test_without_a_vote_the_first_whole_trace_is_taken(rule: SelectionRule) -> None:
    """And none where all were cut, or there is none."""
    cut = Trace(number=0, complete=False, answer="a")
    whole = [Trace(number=number, score=0.5) for number in (3, 2)]
    selected = rule.select([cut, *whole])
    assert selected is not None
    assert (selected.number, selected.answer, selected.shares) == (2, None, {})
    assert rule.select([cut]) is None
    assert rule.select([]) is None


@each_rule
def test_rules_say_what_they_need(rule: SelectionRule) -> None:
    """Without it they raise, and never decide by something else."""
    voting = [Trace(number=number, answer="a") for number in range(3)]
    if rule.needs:
        with pytest.raises(MissingMeasure) as raised:
            rule.select(voting)
        assert {raised.value.need} == rule.needs
    else:
        assert rule.select(voting) is not None
    assert "Order-free" in (type(rule).__doc__ or "")
