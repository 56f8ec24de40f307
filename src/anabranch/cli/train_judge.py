"""`anabranch train-judge`: a judge of partial traces from recordings, for best_of_n's `judge`."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anabranch.cli import errors

if TYPE_CHECKING:
    from anabranch.serving.recordings import Trace
    from anabranch.strategies.best_of_n.judging import Area, TracePair

PART = (0.3, 0.5)
"""Where a trace is cut: after a share of its text that is drawn between these."""


def train_judge(
    traces: Annotated[Path, typer.Argument(metavar="TRACES", help="A recording: see anabranch record.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.json", help="Where the judge goes.")],
    answers: Annotated[
        Literal["math", "text", "choice"], typer.Option("--answers", help="What an answer is.")
    ] = "math",
    seed: Annotated[int, typer.Option("--seed", help="Of where the traces are cut.")] = 0,
) -> None:
    """Train a judge: will two partial traces come to the same answer?

    It learns from pairs of traces of one problem. How good it is on problems that it has not seen is printed, and kept in
    the file. Use it with `anabranch ask --strategy best_of_n`, parameters prune=["redundant"] and judge="FILE.json".
    """
    with errors.told():
        from anabranch.serving.recordings import read
        from anabranch.strategies.best_of_n.judging import train

        pairs = asyncio.run(_pairs(read(traces), answers, random.Random(seed)))
        trained = train(pairs)
        about = {
            "data": traces.name,
            "pairs": len(pairs),
            "pairs with the same answer": sum(pair.same for pair in pairs),
            "AUROC, problems held out": _shown(trained.auroc),
            "AUROC within a problem, problems held out": _shown(trained.within),
        }
        out.write_text(replace(trained.judge, part=PART, about=about).to_json(), encoding="utf-8")
        for name, value in about.items():
            typer.echo(f"{name}: {value}")
        typer.echo(f"kept in {out}")


async def _pairs(
    traces: Iterable[Trace], answers: Literal["math", "text", "choice"], draw: random.Random
) -> list[TracePair]:
    """All pairs of traces of one problem that have answers, each cut somewhere in its first half."""
    from anabranch.answers import Equivalence, Keys
    from anabranch.strategies.best_of_n.judging import TracePair

    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    equivalence = Equivalence() if answers == "math" else None
    try:
        keys: defaultdict[str, Keys] = defaultdict(lambda: Keys(answers, equivalence))
        for trace in traces:
            if (key := await keys[trace.id].of(trace.text)) is not None:
                cut = round(len(trace.text) * draw.uniform(*PART))
                found[trace.id].append((trace.text[:cut], key))
    finally:
        if equivalence is not None:
            equivalence.close()
    return [
        TracePair(problem=problem, first=first, second=second, same=one == other)
        for problem, own in found.items()
        for (first, one), (second, other) in combinations(own, 2)
    ]


def _shown(area: Area) -> list[float]:
    """Value and 95 % interval."""
    return [round(each, 3) for each in (area.value, area.low, area.high)]
