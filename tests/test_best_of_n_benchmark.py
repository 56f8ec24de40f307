"""The benchmark of stopping rules on small made-up recordings, and the normal forms of its answers."""

from __future__ import annotations

import random
from pathlib import Path

import best_of_n
import pools
import pytest
from best_of_n_batch import difficulty_prior, measure_coverage
from best_of_n_plot import draw

from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import AdaptiveConsistency, Fixed


def recording(problems: int = 12, traces: int = 20, *, scored: bool = False) -> pools.Recording:
    """Problems from easy to hard: half of them are always right, the last one in one trace of ten or so."""
    rng = random.Random(4)
    made = []
    for problem in range(problems):
        right = tuple(rng.random() > 1.8 * problem / problems - 0.9 for _ in range(traces))
        own = tuple(
            Trace(
                number=number,
                answer="right" if good else rng.choice("uvwxyz"),
                tokens=100,
                score=0.5 + good / 3 if scored else None,
            )
            for number, good in enumerate(right)
        )
        made.append(pools.Pool(question="?" * (problem + 1), traces=own, right=right))
    return pools.Recording(name="made up, 12 problems", pools=tuple(made), most=16, scored=scored)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("(13 - 5) * (4 - 1) = 24", "((13-5)*(4-1))"),
        ("(4 - 1) * (13 - 5) = 24", "((13-5)*(4-1))"),
        ("2 * (3 * 4)", "(2*3*4)"),
        ("1 + 2.50 + 3 = 6.5", "(1+2.5+3)"),
        ("12 / 3 - 1", "((12/3)-1)"),
        ("Not possible to obtain 24", None),
        ("__import__('os')", None),
        ("None", None),
        ("", None),
    ],
)
def test_expressions_are_compared_up_to_the_order_of_sums_and_products(answer: str, form: str | None) -> None:
    """Prose is no answer, and nothing is evaluated."""
    assert pools.expression(answer) == form


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("$1,400.00", "1400"),
        ("5 hours", "5"),
        ("15000 + 5000 = 20000", "20000"),
        ("10%", "10"),
        ("2:00 PM", "2:00 pm"),
        ("3/4", "3/4"),
        ("from 3 to 5", "from 3 to 5"),
        ("-7.5", "-7.5"),
        (" ", None),
        (None, None),
    ],
)
def test_quantities_are_compared_by_their_one_number(answer: str | None, form: str | None) -> None:
    """What has none, or several, is compared as text."""
    assert pools.quantity(answer) == form


def test_formulas_are_compared_without_spaces_and_sizes() -> None:
    """Fractions of all sizes are one."""
    assert pools.formula(r"\dfrac{1}{9}") == pools.formula(r"$\frac{1} {9}$") == r"\frac{1}{9}"
    assert pools.formula(r"50,\!625") == "50,625"


def test_a_replay_takes_what_the_rule_wants_and_no_more_than_there_is() -> None:
    """A fixed number is one lot; one trace after the other are as many lots as traces."""
    pool = [Trace(number=number, answer="a") for number in range(6)]
    assert best_of_n.replay(Fixed(n=5), pool) == (5, 1)
    assert best_of_n.replay(Fixed(n=50), pool) == (6, 1)
    assert best_of_n.replay(AdaptiveConsistency(), pool) == (4, 4)


def test_a_tie_goes_to_the_answer_that_came_first() -> None:
    """Traces without an answer are not elected; where there is no other, nothing is."""
    traces = [Trace(number=n, answer=answer) for n, answer in enumerate([None, "b", "a", "a", "b"])]
    elected = best_of_n.majority(traces)
    assert elected is not None
    assert elected.number == 1
    assert best_of_n.majority(traces[:1]) is None


def test_there_is_a_line_for_each_rule_and_selection_and_no_rule_takes_more_than_all() -> None:
    """The full vote loses nothing against itself."""
    report, figures = best_of_n.measure(recording(scored=True), orders=2)
    assert len(report.rows) == len(figures)
    assert {row[0] for row in report.rows} == {"majority", "best score"}
    assert all(1 <= taken <= 16 for each in figures.values() for taken in each.traces)
    fixed = [row for row in report.rows if row[1] == "fixed 12"]
    assert [row[2] for row in fixed] == [12.0, 12.0]


def test_the_interval_holds_the_mean() -> None:
    """And is as wide as the spread of the mean: 1.96 x 0.5 / 20 for 400 coins."""
    low, high = best_of_n.interval([0.0, 1.0] * 200)
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.012)


def test_the_difficulty_prior_takes_one_trace_of_each_easy_problem() -> None:
    """With the known order, of those that are left when three neighbours agreed."""
    made = recording()
    arrivals = best_of_n.shuffled(made.pools, 3)
    _, traces, _ = difficulty_prior(made, arrivals, best_of_n.majority)["known order"]
    assert traces[:3] == [1.0, 1.0, 1.0]
    assert traces[-1] > 4


def test_knowing_the_chances_covers_no_fewer_problems() -> None:
    """Than the same number of traces for each, up to chance."""
    report = measure_coverage([recording(problems=40, traces=30)], orders=10)
    for _, _, same, _, known in report.rows:
        assert isinstance(same, float)
        assert isinstance(known, float)
        assert known >= same - 1.0


def test_the_picture_has_a_panel_for_each_recording(tmp_path: Path) -> None:
    """And is the same, byte for byte, each time."""
    _, figures = best_of_n.measure(recording(scored=True), orders=1)
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(str(first), {"made up, A": figures, "made up, B": figures})
    draw(str(second), {"made up, A": figures, "made up, B": figures})
    text = first.read_text(encoding="utf-8")
    assert "made up, A" in text
    assert "made up, B" in text
    assert text == second.read_text(encoding="utf-8")
