"""DeepPrune's greedy clustering: by hand, against a plain loop, asked and told in pieces."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.pruning import Clustering, Greedy, Redundant
from anabranch.strategies.best_of_n.rules import Trace

GROUPS = "aabacab"
"""Which of seven traces belong together."""


def judge(one: int, other: int) -> float:
    """One that knows."""
    return 0.9 if GROUPS[one] == GROUPS[other] else 0.1


def by_definition(order: list[int], rule: Greedy, table: dict[frozenset[int], float]) -> list[list[int]]:
    """The published loop."""
    clusters: list[list[int]] = []
    for trace in order:
        best, likely = -1, rule.threshold
        for place, own in enumerate(clusters):
            mean = fmean(table[frozenset((member, trace))] for member in own[: rule.compared])
            if mean > likely:
                best, likely = place, mean
        if best >= 0:
            clusters[best].append(trace)
        elif len(clusters) < rule.most:
            clusters.append([trace])
    return sorted(clusters, key=len, reverse=True)


def test_the_numbers_of_the_paper_are_the_defaults() -> None:
    """Threshold, clusters, members compared, representatives."""
    rule = Greedy()
    assert (rule.threshold, rule.most, rule.compared, rule.finished) == (0.5, 32, 10, 10)


def test_clusters_by_hand() -> None:
    """Two of the largest cluster are finished; or two of each."""
    found = Greedy(finished=2).cluster(range(7), judge)
    assert found.clusters == ((0, 1, 3, 5), (2, 6), (4,))
    assert found.finished == {0, 1}
    assert found.pruned == {2, 3, 4, 5, 6}
    assert Greedy(finished=2, finish="every").cluster(range(7), judge).pruned == {3, 5}


def test_a_mean_of_just_the_threshold_is_not_enough() -> None:
    """Above it, as published."""
    assert len(Greedy().cluster(range(2), lambda *_: 0.5).clusters) == 2
    assert len(Greedy().cluster(range(2), lambda *_: 0.51).clusters) == 1


def test_a_trace_that_fits_nowhere_when_there_are_enough_clusters_is_not_finished() -> None:
    """It is in no cluster; later ones still join those that there are."""
    found = Greedy(most=1).cluster(range(7), judge)
    assert found.clusters == ((0, 1, 3, 5),)
    assert found.pruned == {2, 4, 6}


def test_where_no_two_traces_agree_the_first_ones_are_finished() -> None:
    """A largest cluster of one says nothing about the others."""
    found = Greedy(finished=3).cluster(range(5), lambda *_: 0.0)
    assert found.finished == {0, 1, 2}
    assert Greedy().cluster([], judge).finished == frozenset()


def test_only_so_many_members_are_compared() -> None:
    """The first ones; so many pairs of 40 traces are asked for that the fortieth costs no more than the fourth."""
    clustering = Clustering(Greedy(compared=3), list(range(40)))
    asked = []
    while wanted := clustering.ask():
        asked.append(wanted)
        clustering.tell(dict.fromkeys(wanted, 0.9))
    assert [len(each) for each in asked] == [1, 2, *[3] * 37]
    assert asked[-1] == ((0, 39), (1, 39), (2, 39))


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(0, 12),
    compared=st.integers(1, 3),
    most=st.integers(1, 5),
)
def test_told_in_pieces_early_late_and_twice_it_comes_to_the_same(
    seed: int, count: int, compared: int, most: int
) -> None:
    """As the published loop, for probabilities that fit no clustering; no pair is asked for once it is known."""
    rng = random.Random(seed)
    table = {frozenset(pair): rng.choice([0.1, 0.4, 0.6, 0.9]) for pair in combinations(range(count), 2)}
    order = rng.sample(range(count), count)
    rule = Greedy(compared=compared, most=most)
    clustering = Clustering(rule, order)
    known: set[tuple[int, int]] = set()
    while wanted := clustering.ask():
        assert not known & set(wanted)
        some = rng.sample(wanted, rng.randint(1, len(wanted)))
        early = [(a, b) for a, b in combinations(order, 2) if rng.random() < 0.1]
        known |= {*some, *early}
        clustering.tell({pair: table[frozenset(pair)] for pair in [*some, *early]})
        clustering.tell({pair: 1.0 - table[frozenset(pair)] for pair in some})
    found = clustering.representatives()
    assert [list(own) for own in found.clusters] == by_definition(order, rule, table)
    assert found.finished | found.pruned == set(range(count))
    assert not found.finished & found.pruned


def test_an_outcome_before_its_end_and_nonsense_are_errors() -> None:
    """Probabilities outside 0 to 1, numbers that are there twice."""
    clustering = Clustering(Greedy(), [0, 1])
    assert not clustering.done
    with pytest.raises(ValueError, match="not judged"):
        clustering.representatives()
    for bad in (1.5, float("nan")):
        with pytest.raises(InvalidParameter, match="probability"):
            clustering.tell({(0, 1): bad})
    with pytest.raises(InvalidParameter, match="numbers"):
        Clustering(Greedy(), [0, 1, 0])


def beginnings(groups: str, *, length: int = 10) -> list[Trace]:
    """Running traces whose text is their group's letter."""
    return [Trace(number=n, text=letter * length, complete=False) for n, letter in enumerate(groups)]


REDUNDANT = Redundant(judge=lambda one, other: float(one == other), greedy=Greedy(finished=2), prefix=5)


def test_redundant_traces_are_pruned_once_all_have_come_so_far() -> None:
    """Not while one is short of it; one that has ended may be short."""
    some = beginnings(GROUPS)
    assert REDUNDANT.pruned(some, []) == {2, 3, 4, 5, 6}
    assert REDUNDANT.pruned([*some[:6], Trace(number=6, text="bbbb")], []) == frozenset()
    assert REDUNDANT.pruned(some[:6], [Trace(number=6, text="bbbb")]) == {2, 3, 4, 5}


def test_what_is_written_later_changes_nothing() -> None:
    """Only the beginnings are compared, so the traces that go on stay the representatives."""
    before = beginnings(GROUPS)
    pruned = REDUNDANT.pruned(before, [])
    after = [
        Trace(number=trace.number, text=trace.text + f"!{trace.number}", complete=False) for trace in before
    ]
    ended = [trace for trace in after if trace.number in pruned]
    assert REDUNDANT.pruned([trace for trace in after if trace.number not in pruned], ended) == frozenset()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"threshold": 1.0}, "threshold"),
        ({"most": 0}, "most"),
        ({"compared": 0}, "compared"),
        ({"finished": 0}, "finished"),
        ({"finish": "none"}, "finish"),
    ],
)
def test_bad_parameters_are_named(settings: dict[str, object], field: str) -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter) as raised:
        Greedy(**settings)  # type: ignore[arg-type]
    assert raised.value.field == field
