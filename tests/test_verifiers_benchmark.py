"""The benchmark of verifiers: what it counts, on made-up verdicts and on a scripted judge."""

from __future__ import annotations

import math
import random

import verifiers
from report import Report
from verifiers import Chain, Judged, Pair, auroc, balanced

from anabranch import Orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.prompts import load
from anabranch.strategies.lookahead.verifiers import Rating, Same
from anabranch.testing import Reply, ScriptedBackend, run_virtual


def judged(*of: tuple[bool, bool, float | None]) -> list[Judged]:
    return [Judged(accepted=accepted, truth=truth, score=score) for accepted, truth, score in of]


def test_a_line_of_the_table() -> None:
    """Three accepted, two of them right; three right, two of them accepted."""
    report = Report(title="", columns=verifiers.COLUMNS)
    verdicts = judged(
        (True, True, 0.9), (True, False, 0.8), (True, True, 0.7), (False, True, 0.3), (False, False, 0.1)
    )
    verifiers.row(report, "name", "model", "0.5", verdicts)
    assert report.rows == [("name", "model", "0.5", 5, 3 / 5, 3 / 5, 2 / 3, 2 / 3, 4 / 6)]


def test_auroc_counts_pairs_and_ties_by_half() -> None:
    """Against every pair of a right one and a wrong one; without scores there is none."""
    draw = random.Random(3)
    some = judged(*((True, draw.random() < 0.6, float(draw.randrange(6))) for _ in range(50)))
    scores = {truth: [each.score or 0.0 for each in some if each.truth is truth] for truth in (True, False)}
    wins = [(a > b) + (a == b) / 2 for a in scores[True] for b in scores[False]]
    assert math.isclose(auroc(some), sum(wins) / len(wins))
    assert math.isnan(auroc(judged((True, True, None), (False, False, None))))


def test_as_many_right_ones_as_wrong_ones() -> None:
    """As far as there are enough of both; the same ones each time."""
    items = [Pair(question="", draft=str(number), own="", truth=number % 5 > 0) for number in range(100)]
    some = balanced(items, 30)
    assert [each.truth for each in some] == [True] * 15 + [False] * 15
    assert balanced(items, 30) == some
    assert len(balanced(items, 1000)) == 40


def test_a_chain_is_accepted_when_each_of_its_steps_is() -> None:
    """And its least score counts; each step is judged behind those before it."""
    seen = []

    def rate(call: Call) -> Reply:
        said = call.branch.messages[-2].content
        seen.append(said)
        best = 4 if "wrong" in str(said).split("\n\n")[-1] else 9
        return Reply(label_logprobs={label: 0.0 if label == str(best) else -50.0 for label in call.labels})

    async def measure() -> list[Judged]:
        rating = Rating(prompt=load("lookahead/rate"), expected=True)
        chains = [
            Chain(question="q", steps=("one", "two"), truth=True),
            Chain(question="q", steps=("one", "wrong", "three"), truth=False),
        ]
        async with Orchestrator(ScriptedBackend(rate)) as orch:
            return await verifiers.of_chains(orch, rating, chains)

    good, bad = run_virtual(measure())
    assert (good.accepted, bad.accepted) == (True, False)
    assert (round(good.score or 0), round(bad.score or 0)) == (9, 4)
    assert "one\n\nwrong" in seen


def test_pairs_that_are_equal_ask_nobody() -> None:
    """The exact check comes first; what is left is the judge's."""
    asked = []

    def judge(call: Call) -> Reply:
        asked.append(call)
        return Reply(label_logprobs={"yes": -0.1, "no": -3.0})

    async def measure() -> list[Judged]:
        pairs = [
            Pair(question="q", draft="So 4.", own="so  4.", truth=True),
            Pair(question="q", draft="So 4.", own="It is 5.", truth=False),
        ]
        same = Same(prompt=load("lookahead/same"))
        backend = ScriptedBackend(judge)
        async with Orchestrator(backend, roles={"judge": backend}) as orch:
            return await verifiers.of_pairs(orch, same, pairs)

    equal, other = run_virtual(measure())
    assert len(asked) == 1
    assert (equal.accepted, equal.score, equal.truth) == (True, 1.0, True)
    assert (other.accepted, other.truth) == (True, False)
