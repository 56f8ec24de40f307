"""The rules that take one trace for itself."""

from __future__ import annotations

import pytest

from anabranch.strategies.best_of_n.rules import MissingMeasure, Selected, Trace
from anabranch.strategies.best_of_n.selection import BestScore, First, Longest

POOL = [
    Trace(number=0, tokens=900, complete=False, score=9.0),
    Trace(number=1, answer="b", tokens=50, score=-3.0),
    Trace(number=2, answer="a", tokens=80, score=-1.0),
    Trace(number=3, answer="a", tokens=80, score=-1.0),
    Trace(number=4, tokens=999, score=5.0),
]
SHARES = {"a": 2 / 3, "b": 1 / 3}


def test_the_best_score_with_an_answer_is_taken() -> None:
    """Raw rewards may be below 0; of equals the one that was asked for first; cut traces are not compared."""
    assert BestScore().select(POOL) == Selected(number=2, answer="a", shares=SHARES)


def test_the_longest_and_the_first_with_an_answer_are_taken() -> None:
    """The shares are those of a plain vote."""
    assert Longest().select(POOL) == Selected(number=2, answer="a", shares=SHARES)
    assert First().select(POOL) == Selected(number=1, answer="b", shares=SHARES)


def test_open_ended_texts_are_compared_where_nothing_has_an_answer() -> None:
    """Then all that came to their end count."""
    assert BestScore().select([POOL[0], POOL[4], Trace(number=5, score=6.0)]) == Selected(number=5)


def test_a_compared_trace_without_a_score_is_an_error() -> None:
    """One that isn't compared needs none."""
    with pytest.raises(MissingMeasure) as raised:
        BestScore().select([*POOL, Trace(number=6, answer="c")])
    assert raised.value.numbers == (6,)
    assert BestScore().select([*POOL, Trace(number=6)]) is not None
