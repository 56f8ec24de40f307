"""What holds for each stopping rule."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.strategies.best_of_n.rules import StoppingRule, Trace
from anabranch.strategies.best_of_n.stopping import (
    ESC,
    AdaptiveConsistency,
    Consensus,
    Dirichlet,
    Entropy,
    Fixed,
    Majority,
    OptScale,
    Preallocated,
    TokenBudget,
    Waves,
)
from voting import used

ORDER_FREE: list[StoppingRule] = [
    Fixed(n=7),
    AdaptiveConsistency(most=20),
    AdaptiveConsistency(criterion=Dirichlet(), most=20),
    AdaptiveConsistency(criterion=Entropy(), most=20),
    AdaptiveConsistency(criterion=Majority(), most=20),
    Consensus(least=6, most=20),
    OptScale(first=3, most=20, target=0.8),
    Preallocated(first=3, most=20),
    Waves(rule=AdaptiveConsistency(most=19), size=4),
    Waves(rule=AdaptiveConsistency(most=19), size=2, growth=2.0, eager=True),
    TokenBudget(rule=Fixed(n=20), tokens=2000, first=3),
]
EVERY = [*ORDER_FREE, ESC(most=18), Waves(rule=ESC(most=18), size=3), TokenBudget(rule=ESC(), tokens=900)]

TRACES = st.lists(
    st.builds(
        Trace,
        number=st.just(0),
        answer=st.sampled_from(["a", "b", "c", None]),
        tokens=st.integers(0, 300),
        score=st.none() | st.floats(0.0, 1.0),
    ),
    max_size=30,
).map(lambda some: [dataclasses.replace(trace, number=number) for number, trace in enumerate(some)])

each_rule = pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)


@each_rule
@given(ended=TRACES)
def test_no_rule_wants_more_than_its_most(rule: StoppingRule, ended: list[Trace]) -> None:
    """Whatever has ended, also more than the most; and one trace at least is wanted at first."""
    assert 0 <= rule.wanted(ended) <= rule.most
    assert rule.wanted([]) >= 1


@each_rule
@given(ended=TRACES)
def test_a_rule_asked_twice_says_the_same(rule: StoppingRule, ended: list[Trace]) -> None:
    """It keeps nothing, and changes nothing that it is given."""
    copy = list(ended)
    assert rule.wanted(ended) == rule.wanted(ended)
    assert ended == copy


@each_rule
def test_each_rule_comes_to_an_end_without_any_answer(rule: StoppingRule) -> None:
    """Where no trace has an answer, a score or a token, it has enough at its most at the latest."""
    assert used(rule, [Trace(number=number) for number in range(500)]) <= rule.most


@pytest.mark.parametrize("rule", ORDER_FREE, ids=lambda rule: type(rule).__name__)
@given(ended=TRACES, data=st.data())
def test_order_of_arrival_changes_nothing_where_a_rule_is_order_free(
    rule: StoppingRule, ended: list[Trace], data: st.DataObject
) -> None:
    """Any other order of the same traces gives the same number."""
    assert rule.wanted(data.draw(st.permutations(ended))) == rule.wanted(ended)


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)
def test_rules_say_whether_they_are_order_free(rule: StoppingRule) -> None:
    """In their docstring; that of a rule around another one refers to it."""
    said = (type(rule).__doc__ or "").replace("\n", " ")
    assert "Order-free" in said or "Depends on the order" in said
    assert ("Order-free where the rule is" in said) == isinstance(rule, Waves | TokenBudget)
