"""Consensus: the share of votes after a first lot."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import Consensus
from voting import traces, used


def test_the_first_lot_is_asked_for_at_once_and_always() -> None:
    """Sixteen, even where all agree from the first."""
    assert Consensus().wanted([]) == 16
    assert Consensus().wanted(traces("a" * 10)) == 16
    assert Consensus().wanted(traces("a" * 16)) == 16


def test_one_vote_of_twenty_may_be_against() -> None:
    """15 of 16 are 0.9375; 19 of 20 are 0.95."""
    rule = Consensus()
    assert rule.wanted(traces("b" + "a" * 15)) == 17
    assert used(rule, traces("b" + "a" * 100)) == 20


def test_traces_without_answers_belong_to_the_lot_but_not_to_the_votes() -> None:
    """Two votes for one answer among sixteen traces are a consensus; no vote at all is none."""
    assert Consensus().wanted(traces("aa" + "-" * 14)) == 16
    assert Consensus().wanted(traces("-" * 16)) == 17


def test_votes_may_be_weighted() -> None:
    """A dissenter of little confidence does not stand in the way; weights of 0 are no votes."""

    def confidence(trace: Trace) -> float:
        return trace.confidences[0]

    ended = [
        dataclasses.replace(trace, confidences=(0.1 if trace.answer == "b" else 1.0,))
        for trace in traces("aaab")
    ]
    assert Consensus(least=4, weight=confidence).wanted(ended) == 4
    assert Consensus(least=4).wanted(ended) == 5
    assert Consensus(least=4, weight=lambda _: 0.0).wanted(ended) == 5


def test_bad_parameters_are_named() -> None:
    """A first lot larger than the most is a mistake."""
    with pytest.raises(InvalidParameter, match="least"):
        Consensus(least=20, most=10)
    with pytest.raises(InvalidParameter, match="share"):
        Consensus(share=1.2)
