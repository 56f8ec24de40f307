"""Which answer is taken: votes of all weights, ties, and traces that are no votes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.selection import BestScore, Vote


def traces(*answers: str | None, scores: tuple[float | None, ...] = ()) -> list[Trace]:
    padded = (*scores, *[None] * len(answers))
    return [Trace(number=number, answer=answer, score=padded[number]) for number, answer in enumerate(answers)]


def test_the_majority() -> None:
    """With the shares of all, the greatest first; its text is that of its first trace."""
    selected = Vote().select(traces("a", "b", None, "b", "c", "b"))
    assert selected is not None
    assert (selected.number, selected.answer) == (1, "b")
    assert dict(selected.shares) == {"b": 0.6, "a": 0.2, "c": 0.2}
    assert next(iter(selected.shares)) == "b"


@given(answers=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12), seed=st.integers())
def test_it_is_a_most_common_answer_whatever_the_order_of_arrival(answers: list[str | None], seed: int) -> None:
    """Ties go to the answer that was asked for first."""
    made = traces(*answers)
    arrived = random.Random(seed).sample(made, len(made))
    selected = Vote().select(arrived)
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        assert selected is None
    else:
        assert selected is not None
        assert selected.answer == votes.most_common(1)[0][0]  # of equal counts the first that was met


def test_what_did_not_end_is_no_vote() -> None:
    """Though an answer could be read."""
    cut = [Trace(number=number, answer="b", complete=False) for number in range(3)]
    selected = Vote().select([*cut, Trace(number=3, answer="a")])
    assert selected is not None
    assert selected.answer == "a"


def test_scores_weigh_and_the_best_of_the_winners_is_the_text() -> None:
    """Two votes of 0.4 and 0.5 beat one of 0.8; negative scores weigh nothing."""
    made = traces("a", "b", "b", "c", scores=(0.8, 0.4, 0.5, -3.0))
    selected = Vote(weight="score").select(made)
    assert selected is not None
    assert (selected.answer, selected.number) == ("b", 2)
    assert selected.shares == pytest.approx({"b": 0.9 / 1.7, "a": 0.8 / 1.7, "c": 0.0})


def test_where_one_weight_is_missing_all_count_alike() -> None:
    """And the rule says so."""
    made = traces("a", "b", "b", scores=(9.0, 0.1, None))
    rule = Vote(weight="score")
    selected = rule.select(made)
    assert rule.missing(made)
    assert not Vote().missing(made)
    assert selected is not None
    assert selected.answer == "b"


def confident(number: int, answer: str, *confidences: float) -> Trace:
    return Trace(number=number, answer=answer, confidences=confidences)


def test_confidence_weighs_by_its_measure() -> None:
    """A trace that is sure on the whole but has one weak place loses by its lowest group."""
    made = [confident(0, "a", 9, 9, 1, 9), confident(1, "b", 6, 6, 6, 6)]
    by = {
        measure: Vote(weight=measure, window=2).select(made) for measure in ("mean", "tail", "lowest", "bottom")
    }
    assert {name: selected.answer for name, selected in by.items() if selected} == {
        "mean": "a",  # 7 to 6
        "tail": "b",  # 5 to 6
        "lowest": "b",
        "bottom": "b",
    }


def test_only_the_surest_vote() -> None:
    """A tenth of ten is one: the surest outvotes nine; the name is the share that is kept."""
    made = [confident(number, "many", 5.0) for number in range(9)] + [confident(9, "sure", 7.0)]
    kept = {keep: Vote(weight="mean", keep=keep).select(made) for keep in (0.1, 0.9, 1.0)}
    assert {keep: selected.answer for keep, selected in kept.items() if selected} == {
        0.1: "sure",
        0.9: "many",
        1.0: "many",
    }


@pytest.mark.parametrize("keep", [0.0, 1.1])
def test_the_share_that_is_kept_is_a_share(keep: float) -> None:
    """It is refused by its name."""
    with pytest.raises(InvalidParameter, match="keep"):
        Vote(keep=keep)


def test_the_best_score() -> None:
    """Also without answers; what has no score or no end is not taken."""
    made = [
        Trace(number=0, score=0.2),
        Trace(number=1, score=0.9, complete=False),
        Trace(number=2, score=0.7, answer="x"),
        Trace(number=3, score=0.7),
        Trace(number=4),
    ]
    selected = BestScore().select(made)
    assert selected is not None
    assert (selected.number, selected.answer) == (2, "x")
    assert BestScore().select([made[1], made[4]]) is None
