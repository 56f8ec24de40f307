"""Pruning by what has ended: nothing that still runs can change the vote, or a stopping rule has enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.pruning import Combined, Decided, Enough, LowConfidence, Overlong
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.selection import MajorityVote
from anabranch.strategies.best_of_n.stopping import AdaptiveConsistency, Consensus
from voting import traces


def running(count: int, first: int = 100, tokens: int = 10) -> list[Trace]:
    """Traces that have not ended."""
    return [Trace(number=number, tokens=tokens, complete=False) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("votes", "left", "over"),
    [
        ("aaab", 1, True),  # 3 to 2 at worst
        ("aaab", 2, False),  # 3 to 3: a tie may go either way
        ("aa", 1, True),
        ("aa", 2, False),  # two votes for an answer that nobody has given yet
        ("aabbb", 1, False),
        ("----", 2, False),
        ("", 3, False),
    ],
)
def test_all_are_pruned_once_the_leader_cannot_be_overtaken(votes: str, left: int, over: bool) -> None:
    """Not before: a tie is no decision."""
    expected = {trace.number for trace in running(left)} if over else set()
    assert Decided().pruned(running(left), traces(votes)) == expected


def test_traces_that_are_still_to_be_asked_for_count_as_votes_that_are_missing() -> None:
    """Of eight, five have ended and one runs: three can still vote."""
    assert Decided().pruned(running(1), traces("aaaab"))
    assert not Decided(traces=8).pruned(running(1), traces("aaaab"))
    assert Decided(traces=8).pruned(running(1), traces("aaaaa"))


def test_a_cut_trace_that_has_an_answer_decides_nothing() -> None:
    """As it is no vote when the answer is selected."""
    cut = [replace(trace, complete=False) for trace in traces("aaaa")]
    assert not Decided().pruned(running(2), cut)


@given(votes=st.text("abc-", max_size=8), more=st.text("abc-", min_size=1, max_size=5))
def test_what_is_pruned_as_decided_would_not_have_changed_the_vote(votes: str, more: str) -> None:
    """Whatever the running traces would have said."""
    ended = traces(votes)
    if Decided().pruned(running(len(more)), ended):
        late = [replace(trace, number=trace.number + len(votes)) for trace in traces(more)]
        early, full = MajorityVote().select(ended), MajorityVote().select([*ended, *late])
        assert early is not None
        assert full is not None
        assert early.answer == full.answer


def test_all_are_pruned_once_a_stopping_rule_has_enough() -> None:
    """Four equal answers for the Beta posterior at 0.95; 19 of 20 for DeepConf's share of 0.95, after 16."""
    beta = Enough(rule=AdaptiveConsistency())
    assert not beta.pruned(running(3), traces("aaa"))
    assert beta.pruned(running(3), traces("aaaa")) == {100, 101, 102}
    consensus = Enough(rule=Consensus())
    assert not consensus.pruned(running(3), traces("a" * 15))
    assert consensus.pruned(running(3), traces("a" * 16))
    assert not consensus.pruned(running(3), traces("a" * 18 + "bb"))
    assert consensus.pruned(running(3), traces("a" * 19 + "b"))


def test_traces_that_have_used_up_their_tokens_are_pruned() -> None:
    """At the number, not only above."""
    some = [*running(1, tokens=99), *running(1, 200, tokens=100), *running(1, 300, tokens=101)]
    assert Overlong(tokens=100).pruned(some, []) == {200, 300}


def test_a_combination_prunes_what_any_of_its_rules_prunes() -> None:
    """And needs what any of them needs; of no rules, nothing."""
    some = [*running(2), *running(1, 200, tokens=500)]
    rule = Combined(rules=(Overlong(tokens=400), Enough(rule=AdaptiveConsistency())))
    assert rule.pruned(some, traces("aa")) == {200}
    assert rule.pruned(some, traces("aaaa")) == {100, 101, 200}
    assert Combined(rules=()).pruned(some, traces("aaaa")) == frozenset()
    assert rule.needs == frozenset()
    assert Combined(rules=(rule, LowConfidence())).needs == {"confidences"}


def test_bad_parameters_are_named() -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter, match="tokens"):
        Overlong(tokens=0)
    with pytest.raises(InvalidParameter, match="traces"):
        Decided(traces=-1)
