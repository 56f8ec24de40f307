"""The benchmarks of selection rules and of the judge, on small made-up recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import best_of_n_selection
import pools
import pruning_judge
import pytest

from anabranch.strategies.best_of_n.judging import Recipe, train
from anabranch.strategies.best_of_n.rules import Trace


def recording() -> pools.Recording:
    """Four problems: right by majority, right by score, right by both, and by nothing."""
    ballots = {"aab": "a", "abb": "a", "aaa": "a", "bcd": "a"}
    made = []
    for answers, gold in ballots.items():
        own = tuple(
            Trace(
                number=n,
                answer=answer,
                tokens=10 * n,
                score={"aabb": 0.1, "abba": 0.9}.get(answers + answer, 0.2),
            )
            for n, answer in enumerate(answers)
        )
        made.append(pools.Pool(question=answers, traces=own, right=tuple(answer == gold for answer in answers)))
    return pools.Recording(name="made up", pools=tuple(made), most=3, scored=True)


def test_each_rule_has_a_line_with_its_accuracy() -> None:
    """By hand: the majority is right in two of four problems, with scores in three."""
    report = best_of_n_selection.measure(recording(), orders=30, of=(1, 3))
    found = {(row[0], row[1]): row[2] for row in report.rows}
    assert len(found) == 2 * len(best_of_n_selection.RULES)
    assert found["3", "majority"] == "50.0"
    assert found["3", "score-weighted votes"] == found["3", "best score"] == "75.0"
    assert found["1", "majority"] == found["1", "first"] == found["1", "best score"] == found["3", "first"]
    assert {row[4] for row in report.rows if row[1] == "majority"} == {"0.0"}


def test_the_first_is_the_one_asked_for_first_in_each_order() -> None:
    """Not the one that was recorded first: over all orders it is right as often as a trace is."""
    pool = recording().pools[0]
    orders = [[pool.traces[place] for place in order] for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))]
    rule = best_of_n_selection.RULES["first"]
    assert best_of_n_selection.accuracy(rule, pool, orders, 3) == pytest.approx(100 * 2 / 3)


def test_pairs_are_of_one_problem_and_of_beginnings(tmp_path: Path) -> None:
    """Traces without an answer are left out; answers are compared in their normal form."""
    path = tmp_path / "made.jsonl.gz"
    answers = [r"\dfrac{1}{2}", r"\frac{1}{2}", "3", None]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for problem in ("p", "q"):
            samples = [{"text": f"{problem}{k}" * 50, "answer": answer} for k, answer in enumerate(answers)]
            file.write(json.dumps({"id": problem, "samples": samples}) + "\n")
    found = pruning_judge.pairs(path)
    assert [pair.same for pair in found] == [True, False, False] * 2
    assert all(pair.first[0] == pair.second[0] == pair.problem for pair in found)
    assert all(30 <= len(text) <= 50 for pair in found for text in (pair.first, pair.second))
    trained = train(found, Recipe(folds=2))
    assert len(pruning_judge.measure(found, trained).rows) == 3
    assert pruning_judge.about(found, trained)["pairs"] == 6
