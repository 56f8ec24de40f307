"""Which running traces are stopped: unsure ones, loops, and what could change nothing any more."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.pruning import Looping, LowConfidence, Settled, Together
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.selection import Vote


def ended(*lowest: float) -> list[Trace]:
    return [Trace(number=number, confidences=(level, level)) for number, level in enumerate(lowest)]


def running(number: int, *confidences: float, text: str = "") -> Trace:
    return Trace(number=number, complete=False, confidences=confidences, text=text)


@pytest.mark.parametrize(("keep", "threshold"), [(0.1, 10.0), (0.5, 6.0), (0.9, 2.0), (1.0, 1.0)])
def test_the_threshold_keeps_the_share_that_it_is_named_for(keep: float, threshold: float) -> None:
    """Of ten warm-up traces with lowest groups 1 to 10, so many are at or above it."""
    rule = LowConfidence(keep=keep, warm_up=10, window=2)
    assert rule.threshold(ended(*range(10, 0, -1), 99.0)) == threshold  # the eleventh is no warm-up


def test_a_trace_is_stopped_when_a_full_group_is_below_the_threshold() -> None:
    """A short one never is; one at the threshold is not; what was unsure earlier is not looked at again."""
    rule = LowConfidence(keep=1.0, warm_up=2, window=2)
    traces = [running(5, 1.0), running(6, 3.9, 4.0), running(7, 4.0, 4.0), running(8, 0.0, 9.0, 9.0)]
    assert rule.pruned(traces, ended(4.0, 6.0)) == {6}


def test_before_the_warm_up_is_over_none_is_stopped() -> None:
    """Traces that did not end, or have no confidences, are no warm-up."""
    rule = LowConfidence(keep=1.0, warm_up=2, window=2)
    others = [Trace(number=7), Trace(number=8, complete=False, confidences=(9.0, 9.0))]
    assert rule.threshold([*ended(4.0), *others]) is None
    assert not rule.pruned([running(5, 0.0, 0.0)], [*ended(4.0), *others])


def test_the_threshold_follows_the_traces_that_it_is_given() -> None:
    """One rule may serve several requests."""
    rule = LowConfidence(keep=1.0, warm_up=1, window=1)
    assert [rule.threshold(ended(level)) for level in (4.0, 6.0, 4.0)] == [4.0, 6.0, 4.0]


SENTENCE = "Wait, let me check that again, since the sum of the angles is 180. "
LINES = "".join(f"So {number} times 7 is {7 * number}, and we go on.\n" for number in range(1, 40))


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("It begins well. " + SENTENCE * 8, True),
        ("a b c " * 50, True),
        (SENTENCE * 2, False),
        (SENTENCE * 8 + "But now for something else.", False),
        (LINES, False),
        ("1/3 = 0." + "3" * 400, False),
        ("| 0 | 0 | 0 |\n" * 40, False),
        ("- - - - " * 60, False),
        ("", False),
        ("x", False),
    ],
)
def test_loops(text: str, loops: bool) -> None:
    """Words that come again and again; digits, tables and lines that only look alike are none."""
    assert Looping().loops(text) is loops


@given(
    piece=st.text(alphabet="abc ,.", min_size=1, max_size=80).filter(
        lambda piece: any(map(str.isalpha, piece))
    ),
    before=st.text(alphabet="xyz ", max_size=60),
)
def test_any_piece_that_is_repeated_long_enough_is_a_loop(piece: str, before: str) -> None:
    """Whatever stands before, and wherever the text is just cut."""
    text = before + piece * (4 + 300 // len(piece))
    assert Looping().loops(text)
    assert Looping().loops(text[:-1])


@given(votes=st.lists(st.sampled_from("ab"), max_size=8), more=st.integers(0, 4))
def test_settled_means_that_no_vote_to_come_changes_the_answer(votes: list[str], more: int) -> None:
    """Checked by trying all of them; answers that nobody gave yet included."""
    have = [Trace(number=number, answer=answer) for number, answer in enumerate(votes)]
    rule = Settled(most=len(votes) + more)
    stopped = rule.pruned([running(90)], have)
    now = Vote().select(have)
    outcomes = {
        selected.answer
        for added in product("abc", repeat=more)
        if (selected := Vote().select([*have, *(Trace(number=50 + i, answer=a) for i, a in enumerate(added))]))
    }
    if stopped:
        assert now is not None
        assert outcomes == {now.answer}
    else:
        assert (
            now is None
            or len(outcomes) > 1
            or votes.count("a") == votes.count("b") + more
            or _near(votes, more)
        )


def _near(votes: list[str], more: int) -> bool:
    """A tie at the end, which the rule leaves alone."""
    return abs(votes.count("a") - votes.count("b")) <= more


def test_rules_go_together() -> None:
    """What any of them stops is stopped; ended traces never are."""
    rule = Together((Looping(), LowConfidence(keep=1.0, warm_up=1, window=1)))
    traces = [running(5, 9.0, text=SENTENCE * 9), running(6, 1.0), running(7, 9.0, text="fine")]
    assert rule.pruned(traces, ended(4.0)) == {5, 6}
    assert Together(()).pruned(traces, ended(4.0)) == frozenset()


@pytest.mark.parametrize(
    "made", [lambda: LowConfidence(keep=0), lambda: LowConfidence(warm_up=0), lambda: Looping(times=1)]
)
def test_bad_parameters_are_refused(made: object) -> None:
    """With their names."""
    assert callable(made)
    with pytest.raises(InvalidParameter):
        made()
