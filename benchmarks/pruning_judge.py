"""Trains the judge of partial traces that is in the package, and measures it on problems held out from it.

The pairs are those within each of 100 problems of MATH; each trace is cut after a share of its text that is drawn between
three and five tenths. Needs the recordings: ANABRANCH_TEST_DATA is their folder; `--write FILE.json` keeps the judge.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from pools import folder, formula
from report import Report, finish, parser

from anabranch.strategies.best_of_n.judging import Area, Rated, TracePair, Trained, bootstrap, train

FILE = "qwen_math100x8_rm.jsonl.gz"
PART = (0.3, 0.5)


def pairs(path: Path, seed: int = 0, part: tuple[float, float] = PART) -> list[TracePair]:
    """All pairs of traces with answers, within each problem. Raises FileNotFoundError without the recording."""
    rng = random.Random(seed)
    found: list[TracePair] = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            cut = [
                (_beginning(sample["text"], rng.uniform(*part)), formula(sample["answer"]))
                for sample in row["samples"]
            ]
            found += [
                TracePair(problem=row["id"], first=first, second=second, same=mine == theirs)
                for (first, mine), (second, theirs) in combinations(cut, 2)
                if mine and theirs
            ]
    return found


def _beginning(text: str, share: float) -> str:
    return text[: round(len(text) * share)]


def measure(given: Sequence[TracePair], trained: Trained) -> Report:
    """One table: the judge, what the length of the two texts alone says, and chance."""
    same = sum(pair.same for pair in given)
    report = Report(
        title=f"same answer? {len(given)} pairs of beginnings, {same} the same; problems held out",
        columns=("judge", "AUROC", "95 %", "within a problem", "95 % of that"),
    )
    _line(report, "logistic regression, as shipped", trained.auroc, trained.within)
    for name, size in (("shorter: the same", len), ("chance", lambda _: 0)):
        rated = [
            Rated(problem=pair.problem, rating=-float(size(pair.first) + size(pair.second)), same=pair.same)
            for pair in given
        ]
        _line(report, name, bootstrap(rated), bootstrap(rated, each_problem=True))
    return report


def _line(report: Report, name: str, pooled: Area, within: Area) -> None:
    report.row(name, *(cell for area in (pooled, within) for cell in (f"{area.value:.3f}", _range(area))))


def _range(area: Area) -> str:
    return f"{area.low:.3f} to {area.high:.3f}"


def about(given: Sequence[TracePair], trained: Trained) -> dict[str, object]:
    """What is kept with the judge: its source, with licence, and how good it is."""
    return {
        "task": "probability that two partial traces of one problem give the same final answer",
        "data": "QwenLM/Qwen2.5-Math @a45202bd16f1: 8 solutions to each of 100 problems of MATH (hendrycks/math)",
        "licence": "MIT",
        "pairs": len(given),
        "pairs with the same answer": sum(pair.same for pair in given),
        "problems with both kinds": len({pair.problem for pair in given if not pair.same}),
        "AUROC, problems held out": _shown(trained.auroc),
        "AUROC within a problem, problems held out": _shown(trained.within),
    }


def _shown(area: Area) -> list[float]:
    """Value and 95 % interval."""
    return [round(each, 3) for each in (area.value, area.low, area.high)]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--write", metavar="FILE.json", help="keep the judge there")
    chosen = options.parse_args()
    try:
        given = pairs(folder() / FILE)
    except FileNotFoundError as error:
        sys.exit(f"{error}; set ANABRANCH_TEST_DATA to the folder that has traces/ with the recordings")
    trained = train(given)
    if chosen.write:
        judge = replace(trained.judge, part=PART, about=about(given, trained))
        Path(chosen.write).write_text(judge.to_json(), encoding="utf-8")
    finish([measure(given, trained)], chosen)
