"""How far lookahead's verifiers are right, on recorded solutions: precision, recall and AUROC of what they accept.

    python benchmarks/verifiers.py
    python benchmarks/verifiers.py --judge local: --embedder sglang://127.0.0.1:30001 --scorer sglang://127.0.0.1:30002

Same meaning: the last steps of two solutions of one problem (`qwen_math100x8_rm`, whose samples have their answers beside
them) mean the same where the two answers are the same. Valid step: a recorded reward against the answer's correctness on
the same recording; and on `verify_cot_human600` the target's rating or likelihood of each step, whose least one stands
for the chain, against the human label of the whole chain.

The data is in $ANABRANCH_TEST_DATA. Verifiers that need a model are left out without its URL; each kind then
judges `--pairs` pairs or `--chains` chains, half of them right.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from report import Report, finish, parser

from anabranch import Branch, Orchestrator
from anabranch.orchestrator.run import Run
from anabranch.prompts import load
from anabranch.strategies.logits import sigmoid
from anabranch.strategies.lookahead.steps import Step, numbers
from anabranch.strategies.lookahead.verifiers import (
    Embedding,
    Likelihood,
    Rating,
    Same,
    Verifier,
    exact,
)

COLUMNS = (
    "verifier",
    "model",
    "least value",
    "judged",
    "of them right",
    "accepted",
    "precision",
    "recall",
    "AUROC",
)
_LABEL = re.compile(r"^#\d+\.\s*(?:\(by[^)]*\)\s*)?(?:Step \d+:\s*)?", re.MULTILINE)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a verifier said of one thing, and what is true of it. `score` is None where it gives none."""

    accepted: bool
    score: float | None
    truth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two steps at the same place; `truth`: they mean the same."""

    question: str
    draft: str
    own: str
    truth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain of thought; `truth`: people found it valid."""

    question: str
    steps: tuple[str, ...]
    truth: bool


Item = TypeVar("Item", Pair, Chain)


class Ask:
    """A strategy that asks a verifier for one verdict, and says nothing else."""

    name = "ask"

    def __init__(self, verifier: Verifier, before: str, draft: str, own: str | None) -> None:
        self._verifier, self._before, self._texts = verifier, before, (draft, own)

    async def __call__(self, run: Run) -> None:
        """Judge."""
        draft, own = (None if text is None else self._step(run, text) for text in self._texts)
        assert draft is not None
        verdict = await self._verifier.judge(run, draft, own)
        run.report(accepted=verdict.accepted, score=verdict.score)
        run.emit("-")

    def _step(self, run: Run, text: str) -> Step:
        return Step(text=text, branch=run.question.say(self._before + text))


def rows(name: str) -> list[Row]:
    """A recording."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "traces" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def last_step(text: str) -> str:
    """The last step of a solution."""
    return [step for step in text.split("\n\n") if step.strip()][-1].strip()


def pairs() -> list[Pair]:
    """All pairs of samples that came to an answer, of each problem."""
    return [
        Pair(
            question=row["problem"],
            draft=last_step(first["text"]),
            own=last_step(second["text"]),
            truth=first["answer"] == second["answer"],
        )
        for row in rows("qwen_math100x8_rm")
        for first, second in combinations([each for each in row["samples"] if each["answer"]], 2)
    ]


def chains() -> list[Chain]:
    """The chains that people have judged, without the numbering of their steps."""
    return [
        Chain(
            question=row["problem"], steps=tuple(filter(None, _steps(row["cot"]))), truth=row["human_flag"] == 1
        )
        for row in rows("verify_cot_human600")
    ]


def _steps(text: str) -> Iterable[str]:
    return (_LABEL.sub("", step).strip() for step in text.split("\n\n"))


def balanced(items: Sequence[Item], most: int) -> list[Item]:
    """As many right ones as wrong ones, drawn once and for all."""
    draw = random.Random(0)
    halves = [[each for each in items if each.truth is truth] for truth in (True, False)]
    size = min(most // 2, *map(len, halves))
    return [each for half in halves for each in draw.sample(half, size)]


def free(items: Sequence[Pair], verdict: Callable[[Pair], bool]) -> list[Judged]:
    """The verdicts of a verifier that costs nothing."""
    return [Judged(accepted=verdict(each), score=None, truth=each.truth) for each in items]


def is_exact(pair: Pair) -> bool:
    """Whether the exact check accepts."""
    branch = Branch.of(pair.question)
    return exact(Step(text=pair.draft, branch=branch), Step(text=pair.own, branch=branch)) is not None


def has_numbers(pair: Pair) -> bool:
    """Whether the numbers are the same."""
    return is_exact(pair) or (bool(numbers(pair.draft)) and numbers(pair.draft) == numbers(pair.own))


async def ask(
    orch: Orchestrator, verifier: Verifier, question: str, before: str, draft: str, own: str | None
) -> Judged:
    """One verdict of a verifier that asks a model. Its truth is not known here."""
    answer = await orch.ask(question, strategy=Ask(verifier, before, draft, own))
    score = answer.figures["score"]
    assert isinstance(score, float)
    return Judged(accepted=bool(answer.figures["accepted"]), score=score, truth=False)


async def of_pairs(orch: Orchestrator, verifier: Verifier, items: Sequence[Pair]) -> list[Judged]:
    """Verdicts on pairs of steps."""

    async def one(pair: Pair) -> Judged:
        if is_exact(pair):
            return Judged(accepted=True, score=1.0, truth=pair.truth)
        got = await ask(orch, verifier, pair.question, "", pair.draft, pair.own)
        return Judged(accepted=got.accepted, score=got.score, truth=pair.truth)

    return await _all(one, items)


async def of_chains(orch: Orchestrator, verifier: Verifier, items: Sequence[Chain]) -> list[Judged]:
    """Verdicts on chains: one is accepted when each step is, and its least score counts."""

    async def one(chain: Chain) -> Judged:
        before = ["".join(f"{step}\n\n" for step in chain.steps[:place]) for place in range(len(chain.steps))]
        got = [
            await ask(orch, verifier, chain.question, said, step, None)
            for said, step in zip(before, chain.steps, strict=True)
        ]
        least = min(each.score or 0.0 for each in got)
        return Judged(accepted=all(each.accepted for each in got), score=least, truth=chain.truth)

    return await _all(one, items)


async def _all(one: Callable[[Item], Coroutine[None, None, Judged]], items: Sequence[Item]) -> list[Judged]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


def auroc(judged: Sequence[Judged]) -> float:
    """Probability that a right one has the greater score, ties half. NaN without scores or without both kinds."""
    right = np.array([each.score for each in judged if each.truth and each.score is not None])
    wrong = np.array([each.score for each in judged if not each.truth and each.score is not None])
    if not len(right) or not len(wrong):
        return float("nan")
    return float(np.mean((right[:, None] > wrong) + 0.5 * (right[:, None] == wrong)))


def row(report: Report, name: str, model: str, least: str, judged: Sequence[Judged]) -> None:
    """A line of the table."""
    accepted = [each for each in judged if each.accepted]
    hits, right = sum(each.truth for each in accepted), sum(each.truth for each in judged)
    report.row(
        name,
        model,
        least,
        len(judged),
        right / len(judged),
        len(accepted) / len(judged),
        hits / len(accepted) if accepted else float("nan"),
        hits / right,
        auroc(judged),
    )


def rewards(threshold: float) -> list[Judged]:
    """The recorded reward of each whole sample, as RSD reads it, against its answer."""
    return [
        Judged(
            accepted=sigmoid(each["rm_score"]) >= threshold, score=each["rm_score"], truth=bool(each["correct"])
        )
        for row in rows("qwen_math100x8_rm")
        for each in row["samples"]
    ]


async def same_meaning(options: argparse.Namespace) -> Report:
    """Verifiers that compare two steps."""
    report = Report(title="Same meaning: two last steps of one problem", columns=COLUMNS, numbers_from=3)
    items = pairs()
    some = balanced(items, options.pairs)
    for which, found in (("all pairs", items), (f"{len(some)} pairs", some)):
        row(report, f"exact, {which}", "", "", free(found, is_exact))
        row(report, f"numbers, {which}", "", "", free(found, has_numbers))
    if options.embedder:
        async with Orchestrator(options.embedder, roles={"embedder": options.embedder}) as orch:
            for least in (0.95, 0.99):
                close = Embedding(threshold=least)
                row(report, "embedding", options.embedder_name, f"{least}", await of_pairs(orch, close, some))
    if options.judge:
        async with Orchestrator(options.judge, roles={"judge": options.judge}) as orch:
            same = Same(prompt=load("lookahead/same"))
            row(report, "same", options.judge_name, f"{same.threshold}", await of_pairs(orch, same, some))
    return report


async def valid(options: argparse.Namespace) -> Report:
    """Verifiers that look at the draft alone."""
    report = Report(title="Valid: the draft alone", columns=COLUMNS, numbers_from=3)
    for threshold in (0.5, 0.7, 0.9):
        row(report, "reward, recorded", "Qwen2.5-Math-RM-72B", f"{threshold}", rewards(threshold))
    some = balanced(chains(), options.chains)
    if options.judge:
        async with Orchestrator(options.judge) as orch:
            rating = Rating(prompt=load("lookahead/rate"), expected=True)
            row(
                report, "rating", options.judge_name, f"{rating.threshold}", await of_chains(orch, rating, some)
            )
    if options.scorer:
        async with Orchestrator(options.scorer) as orch:
            likely = Likelihood()
            row(
                report,
                "likelihood",
                options.scorer_name,
                f"{likely.threshold}",
                await of_chains(orch, likely, some),
            )
    return report


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--judge", metavar="URL", help="of the verifiers same and rating")
    options.add_argument("--embedder", metavar="URL")
    options.add_argument("--scorer", metavar="URL", help="a server that gives likelihoods")
    for role in ("judge", "embedder", "scorer"):
        options.add_argument(f"--{role}-name", default="", help="how the table calls this model")
    options.add_argument("--pairs", type=int, default=200)
    options.add_argument("--chains", type=int, default=100)
    chosen = options.parse_args()

    async def both() -> list[Report]:
        return [await same_meaning(chosen), await valid(chosen)]

    finish(asyncio.run(both()), chosen)


if __name__ == "__main__":
    main()
