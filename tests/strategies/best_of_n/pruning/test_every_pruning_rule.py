"""What holds for each pruning rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.strategies.best_of_n.pruning import (
    Combined,
    Decided,
    Enough,
    Greedy,
    Looping,
    LowConfidence,
    Overlong,
    Redundant,
)
from anabranch.strategies.best_of_n.rules import PruningRule, Trace
from anabranch.strategies.best_of_n.stopping import AdaptiveConsistency

ORDER_FREE: list[PruningRule] = [
    Overlong(tokens=5),
    Decided(),
    Enough(rule=AdaptiveConsistency(most=6)),
    Looping(times=3, least=16, least_wordless=16),
    Redundant(judge=lambda one, other: float(one == other), greedy=Greedy(finished=1), prefix=3),
    Combined(rules=(Overlong(tokens=5), Decided())),
]
EVERY = [*ORDER_FREE, LowConfidence(keep=0.5, warm_up=2, window=2)]

MADE = st.lists(
    st.builds(
        Trace,
        number=st.just(0),
        text=st.sampled_from(["abc", "abcd", "bca", "ab" * 12]),
        answer=st.sampled_from(["a", "a", "a", "b", None]),
        tokens=st.integers(1, 8),
        confidences=st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple),
    ),
    max_size=14,
).map(lambda some: [replace(trace, number=3 * number) for number, trace in enumerate(some)])

each_rule = pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)


def split(some: list[Trace], ended: int) -> tuple[list[Trace], list[Trace]]:
    """Those that run, and those that have ended."""
    return [replace(trace, complete=False, answer=None) for trace in some[ended:]], some[:ended]


@each_rule
@given(some=MADE, ended=st.integers(0, 14), overlap=st.booleans())
def test_no_rule_prunes_what_has_ended_or_is_unknown(
    rule: PruningRule, some: list[Trace], ended: int, overlap: bool
) -> None:
    """Nor a trace that has ended since it was listed as running; nothing that it is given changes."""
    running, over = split(some, ended)
    listed = [*running, *(replace(trace, complete=False) for trace in over)] if overlap else running
    copy = (list(listed), list(over))
    assert rule.pruned(listed, over) <= {trace.number for trace in running}
    assert (listed, over) == copy
    assert rule.pruned(listed, over) == rule.pruned(listed, over)


@each_rule
def test_each_rule_prunes_something_sometimes(rule: PruningRule) -> None:
    """Of traces that are long, loop, are unsure, say the same, and come too late; nothing of nothing."""
    ended = [Trace(number=n, text="abc", answer="a", tokens=9, confidences=(9.0,) * 3) for n in range(6)]
    running = [
        Trace(number=n, text="ab" * 12, tokens=9, confidences=(1.0,) * 3, complete=False) for n in (7, 8)
    ]
    assert rule.pruned(running, ended) == {7, 8}
    assert rule.pruned([], ended) == frozenset()
    assert rule.pruned([], []) == frozenset()


@pytest.mark.parametrize("rule", ORDER_FREE, ids=lambda rule: type(rule).__name__)
@given(some=MADE, ended=st.integers(0, 14), data=st.data())
def test_order_of_arrival_changes_nothing_where_a_rule_is_order_free(
    rule: PruningRule, some: list[Trace], ended: int, data: st.DataObject
) -> None:
    """Any other order of the same traces prunes the same."""
    running, over = split(some, ended)
    mixed = data.draw(st.permutations(running)), data.draw(st.permutations(over))
    assert rule.pruned(*mixed) == rule.pruned(running, over)


@each_rule
def test_rules_say_whether_they_are_order_free(rule: PruningRule) -> None:
    """In their docstring."""
    said = (type(rule).__doc__ or "").replace("\n", " ")
    assert ("Order-free" in said) == (rule in ORDER_FREE)
    assert ("Depends on the order" in said) == (rule not in ORDER_FREE)
