"""`lookahead` against `sequential` on real models, problem by problem: accuracy, acceptance, span, time.

    python benchmarks/lookahead_models.py --target local:STRONG.gguf --draft local:WEAK.gguf --out runs.jsonl

Needs `benchmarks/gsm8k_test.jsonl` in $ANABRANCH_TEST_DATA. Every problem is answered by each way in turn, greedily, one
request at a time, so that noise hits all alike. Each answer is a line of --out, written as it comes; the lines that
are there are not computed again, and `--limit 0` only reports on them.

An answer is right when the number in its last box, else its last number, is the problem's. Intervals are for other problems of
the same kind: a bootstrap over problems.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from report import Report, finish, parser

from anabranch import Orchestrator, Sampling
from anabranch.strategies.lookahead.timing import speedup

PROMPT = (
    "{problem}\n\nThink step by step, with a blank line between steps. Put the final number in \\boxed{{}}."
)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "sequential": {"strategy": "sequential"},
    "exact": {"strategy": "lookahead", "params": {"verifier": "exact"}},
    "same": {"strategy": "lookahead", "params": {"verifier": "same"}},
    "rating": {"strategy": "specreason"},
    "likelihood": {"strategy": "lookahead", "params": {"verifier": "likelihood", "depth": 1}},
}
GPU_RATIO = 0.12
"""A draft's time over the target's for a token: about that of a 1.7B beside a 32B model (Lookahead Reasoning)."""
RESAMPLES = 10_000
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Line = Mapping[str, Any]


def number(text: str) -> float | None:
    """The number in the last box, else the last one of the text."""
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    found = _NUMBER.findall(boxed[-1] if boxed else text)
    return float(found[-1].replace(",", "")) if found else None


def problems(limit: int) -> list[Line]:
    """The first problems of GSM8K's test split."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "benchmarks" / "gsm8k_test.jsonl"
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in list(lines)[:limit]]


async def answer(orch: Orchestrator, problem: Line, way: str, max_tokens: int) -> Line:
    """One answer, as a line of the results."""
    got = await orch.ask(
        PROMPT.format(problem=problem["problem"]),
        **WAYS[way],
        sampling=Sampling(temperature=0.0),
        max_tokens=max_tokens,
    )
    usage, written = got.usage, number(got.text)
    return {
        "id": problem["id"],
        "way": way,
        "right": written is not None and math.isclose(written, float(problem["answer"].replace(",", ""))),
        "text": got.text,
        "finish_reason": got.finish_reason,
        "wall_s": round(got.timing.wall_s, 3),
        "usage": usage.to_dict(),
        "figures": dict(got.figures),
        "warnings": list(got.warnings),
    }


async def run(options: argparse.Namespace, done: list[Line]) -> None:
    """Answer what is not answered yet."""
    have = {(line["id"], line["way"]) for line in done}
    roles = {"draft": options.draft} | ({"judge": options.judge} if options.judge else {})
    async with Orchestrator(options.target, roles=roles) as orch:
        for index, problem in enumerate(problems(options.limit)):
            turned = options.ways[index % len(options.ways) :] + options.ways[: index % len(options.ways)]
            for way in [way for way in turned if (problem["id"], way) not in have]:
                line = await answer(orch, problem, way, options.max_tokens)
                done.append(line)
                with options.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")


def table(lines: Sequence[Line], title: str) -> Report:
    """Each way beside `sequential`, over the problems that both have answered."""
    report = Report(
        title=title,
        columns=(
            "way",
            "problems",
            "right",
            "difference, points (95 %)",
            "acceptance",
            "target span / plain",
            "work / plain",
            "wall / plain",
            "GPU, predicted",
        ),
    )
    by_way: dict[str, dict[str, Line]] = {}
    for line in lines:
        by_way.setdefault(line["way"], {})[line["id"]] = line
    plain = by_way["sequential"]
    for way, answers in by_way.items():
        both = sorted(answers.keys() & plain.keys())
        pairs = [(answers[each], plain[each]) for each in both]
        report.row(
            way,
            len(pairs),
            f"{fmean(ours['right'] for ours, _ in pairs):.0%}",
            "" if way == "sequential" else _difference([ours["right"] - base["right"] for ours, base in pairs]),
            _acceptance([ours for ours, _ in pairs]),
            _ratio([(_span(ours), _span(base)) for ours, base in pairs]),
            _ratio([(ours["usage"]["work"], base["usage"]["work"]) for ours, base in pairs]),
            _ratio([(ours["wall_s"], base["wall_s"]) for ours, base in pairs]),
            _predicted(way, [ours for ours, _ in pairs]),
        )
    return report


def _span(line: Line) -> int:
    return int(line["figures"].get("target_span") or line["usage"]["span"])


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / sum(base for _, base in pairs)


def _difference(differences: Sequence[int]) -> str:
    found = np.array(differences, dtype=float)
    draws = np.random.default_rng(0).choice(found, (RESAMPLES, len(found))).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return f"{100 * found.mean():+.0f} ({100 * low:+.0f} to {100 * high:+.0f})"


def _acceptance(lines: Sequence[Line]) -> float:
    drafts = [line["figures"].get("drafts") for line in lines]
    accepted = sum(each["accepted"] for each in drafts if each)
    decided = accepted + sum(each["rejected"] for each in drafts if each)
    return accepted / decided if decided else math.nan


def _predicted(way: str, lines: Sequence[Line]) -> str:
    """By the model of time, with the acceptance seen here and a draft as quick as on a GPU.

    It is for verifiers that compare; where the target writes only what is rejected, it does not apply.
    """
    if way not in ("exact", "same") or math.isnan(acceptance := _acceptance(lines)):
        return ""
    return f"{speedup(acceptance, GPU_RATIO, 4):.2f} x"


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--target", required=True, metavar="URL")
    options.add_argument("--draft", required=True, metavar="URL")
    options.add_argument("--judge", metavar="URL", help="the target where left out")
    options.add_argument("--ways", nargs="+", choices=WAYS, default=["sequential", "exact", "same"])
    options.add_argument("--limit", type=int, default=30, help="problems")
    options.add_argument("--max-tokens", type=int, default=400)
    options.add_argument("--out", type=Path, required=True, metavar="FILE")
    chosen = options.parse_args()
    done: list[Line] = []
    if chosen.out.exists():
        done = [json.loads(line) for line in chosen.out.read_text(encoding="utf-8").splitlines()]
    if chosen.limit:
        asyncio.run(run(chosen, done))
    finish([table(done, f"GSM8K, greedy: target {chosen.target}, draft {chosen.draft}")], chosen)


if __name__ == "__main__":
    main()
