"""A token budget: how many traces of the mean length fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import AdaptiveConsistency, Fixed, TokenBudget
from voting import traces, used


def test_as_many_as_fit_at_the_mean_length() -> None:
    """Traces of 100 tokens: 1,050 tokens are ten of them, asked for as soon as the length is known."""
    rule = TokenBudget(rule=Fixed(n=64), tokens=1050, first=2)
    assert rule.wanted([]) == 2
    assert rule.wanted(traces("ab")) == 10
    assert rule.wanted(traces("a" * 10)) == 10


def test_the_guess_follows_the_lengths() -> None:
    """After 100 and 300 tokens of 1,000 the other 600 are three traces of 200."""
    ended = [Trace(number=0, tokens=100), Trace(number=1, tokens=300)]
    assert TokenBudget(rule=Fixed(n=64), tokens=1000).wanted(ended) == 5


def test_a_budget_that_is_spent_wants_no_more() -> None:
    """Also where it was exceeded, or is too small for one trace."""
    assert TokenBudget(rule=Fixed(n=8), tokens=150).wanted(traces("ab")) == 2
    assert TokenBudget(rule=Fixed(n=8), tokens=1).wanted([]) == 1


def test_traces_without_tokens_say_nothing_of_the_length() -> None:
    """After failures of no tokens a first lot is asked for again."""
    failed = [Trace(number=number, complete=False) for number in range(3)]
    assert TokenBudget(rule=Fixed(n=8), tokens=100, first=2).wanted(failed) == 5


def test_the_rule_within_may_want_less() -> None:
    """Four equal answers are enough for it, whatever the budget."""
    assert used(TokenBudget(rule=AdaptiveConsistency(), tokens=10**6), traces("a" * 40)) == 4


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 20_000))
def test_no_trace_is_begun_that_does_not_fit_at_the_mean(lengths: list[int], tokens: int) -> None:
    """Spent tokens and the traces still wanted, at the mean length, are within the budget."""
    ended = [Trace(number=number, tokens=length) for number, length in enumerate(lengths)]
    wanted = TokenBudget(rule=Fixed(n=10**6), tokens=tokens).wanted(ended)
    spent = sum(lengths)
    if wanted > len(ended):
        assert spent + (wanted - len(ended)) * spent / len(ended) <= tokens
    assert spent + (wanted - len(ended) + 1) * spent / len(ended) > tokens


def test_bad_parameters_are_named() -> None:
    """A budget of nothing."""
    with pytest.raises(InvalidParameter, match="tokens"):
        TokenBudget(rule=Fixed(n=1), tokens=0)
