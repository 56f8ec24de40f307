"""Waves: where they end, and what they cost over looking after each trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping import AdaptiveConsistency, Fixed, OptScale, Waves
from voting import traces, used


def test_equal_waves_end_at_multiples() -> None:
    """5, 10, 15, ...; within a wave the end of it is wanted, at its end the next one, or nothing."""
    rule = Waves(rule=AdaptiveConsistency())
    assert [rule.wanted(traces("abcabcabc"[:count])) for count in (0, 1, 4, 5, 6)] == [5, 5, 5, 10, 10]
    assert rule.wanted(traces("aaaaa")) == 5


@pytest.mark.parametrize(("growth", "ends"), [(1.0, [3, 6, 9, 12, 14]), (2.0, [3, 9, 14]), (1.5, [3, 8, 14])])
def test_waves_may_grow(growth: float, ends: list[int]) -> None:
    """3 and twice as many are 3, 9, 21, cut at the most; one and a half times as many are 3, 5, 8."""
    rule = Waves(rule=AdaptiveConsistency(most=14), size=3, growth=growth)
    split = traces("ab" * 7)
    seen = [0]
    while (wanted := rule.wanted(split[: seen[-1]])) > seen[-1]:
        seen.append(wanted)
    assert seen[1:] == ends


def test_a_wave_that_has_begun_is_waited_for() -> None:
    """Four equal answers of five are not enough yet, though the rule within would have enough."""
    assert AdaptiveConsistency().wanted(traces("aaaa")) == 4
    assert Waves(rule=AdaptiveConsistency()).wanted(traces("aaaa")) == 5


def test_eager_waves_are_cut_short() -> None:
    """Where the rule has enough, so has the wave."""
    rule = Waves(rule=AdaptiveConsistency(), eager=True)
    assert rule.wanted(traces("aaa")) == 5
    assert rule.wanted(traces("aaaa")) == 4


def test_more_than_a_wave_is_asked_for_at_once() -> None:
    """What the rule knows to be needed is not cut into waves, only rounded up to the end of one."""
    assert Waves(rule=Fixed(n=20), size=5).wanted([]) == 20
    assert Waves(rule=Fixed(n=17), size=5).wanted([]) == 17  # the most of the rule
    assert Waves(rule=OptScale(first=7, most=20), size=5).wanted([]) == 10


@given(st.text("ab-", min_size=40, max_size=40), st.integers(1, 9))
def test_a_wave_costs_at_most_its_size_less_one(answers: str, size: int) -> None:
    """Against the same rule that looks after each trace, where votes that are settled stay so to the wave's end."""
    alone, pool = AdaptiveConsistency(), traces(answers)
    taken = used(Waves(rule=alone, size=size), pool)
    assert taken >= used(alone, pool)
    assert used(Waves(rule=alone, size=1), pool) == used(alone, pool)
    if alone.wanted(pool[: (end := min(40, -(-used(alone, pool) // size) * size))]) <= end:
        assert taken - used(alone, pool) <= size - 1


def test_bad_parameters_are_named() -> None:
    """A wave of nothing, and waves that shrink."""
    with pytest.raises(InvalidParameter, match="size"):
        Waves(rule=Fixed(n=3), size=0)
    with pytest.raises(InvalidParameter, match="growth"):
        Waves(rule=Fixed(n=3), growth=0.5)
