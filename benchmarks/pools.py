"""Recorded traces, several for each problem, with answers made comparable: what best-of-N's rules are replayed on.

Equal strings are to be equivalent answers, so each recording has its own normal form. It is a plain one, since the
answers are; who knows the right answer is not asked.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.strategies.best_of_n.rules import Trace

CHARACTERS_A_TOKEN = 4
"""For recordings that have texts or their lengths, but no token counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All recorded traces of one problem; `right` says of each whether its answer is."""

    question: str
    traces: tuple[Trace, ...]
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Problems with their pools. `most`: traces that a rule may take; `scored`: they have scores within 0 .. 1."""

    name: str
    pools: tuple[Pool, ...]
    most: int
    scored: bool = False


def recordings(folder: Path) -> list[Recording]:
    """All that are in a folder. Raises FileNotFoundError where one is missing."""
    return [
        Recording(
            name="game of 24, GPT-4, 100 problems x 100 traces",
            pools=_pools(folder / "tot_game24_gpt4_cot_100x100.jsonl.gz", _game24),
            most=40,
        ),
        Recording(
            name="GSM8K, 42 models, 1,319 problems x 41 or 42 answers",
            pools=_pools(folder / "zeroeval_gsm8k_42models_votes.jsonl.gz", _gsm8k),
            most=40,
        ),
        Recording(
            name="MATH, Qwen2.5-Math, 100 problems x 8 traces with reward scores",
            pools=_pools(folder / "qwen_math100x8_rm.jsonl.gz", _math),
            most=8,
            scored=True,
        ),
    ]


def folder() -> Path:
    """Where the environment says that the recordings are."""
    return Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "traces"


Sample = Mapping[str, Any]


def _pools(path: Path, read: Callable[[int, Sample], tuple[Trace, bool]]) -> tuple[Pool, ...]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return tuple(_pool(json.loads(line), read) for line in lines)


def _pool(row: Mapping[str, Any], read: Callable[[int, Sample], tuple[Trace, bool]]) -> Pool:
    traces, right = zip(*(read(number, sample) for number, sample in enumerate(row["samples"])), strict=True)
    return Pool(question=row["problem"], traces=traces, right=right)


def _game24(number: int, sample: Sample) -> tuple[Trace, bool]:
    tokens = len(sample["text"]) // CHARACTERS_A_TOKEN
    return Trace(number=number, answer=expression(sample["answer"]), tokens=tokens), sample["correct"]


def _gsm8k(number: int, sample: Sample) -> tuple[Trace, bool]:
    tokens = sample["chars"] // CHARACTERS_A_TOKEN
    return Trace(number=number, answer=quantity(sample["ans"]), tokens=tokens), sample["ok"]


def _math(number: int, sample: Sample) -> tuple[Trace, bool]:
    trace = Trace(
        number=number,
        answer=formula(sample["answer"]),
        tokens=len(sample["text"]) // CHARACTERS_A_TOKEN,
        score=1 / (1 + math.exp(-sample["rm_score"])),
    )
    return trace, sample["correct"]


def expression(answer: str) -> str | None:
    """`(13 - 5) * (4 - 1) = 24` in a form in which the order of sums and products does not matter; None for prose."""
    try:
        tree = ast.parse(answer.partition("=")[0].strip(), mode="eval")
        return _arranged(tree.body)
    except (SyntaxError, ValueError):
        return None


def _arranged(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=int() | float() as value):
            return f"{value:g}"
        case ast.BinOp(op=ast.Add() | ast.Mult() as op):
            sign = "+" if isinstance(op, ast.Add) else "*"
            return f"({sign.join(sorted(map(_arranged, _operands(node, type(op)))))})"
        case ast.BinOp(left=left, op=ast.Sub() | ast.Div() as op, right=right):
            return f"({_arranged(left)}{'-' if isinstance(op, ast.Sub) else '/'}{_arranged(right)})"
    raise ValueError("no arithmetic")


def _operands(node: ast.expr, op: type[ast.operator]) -> Iterable[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, op):
        return [*_operands(node.left, op), *_operands(node.right, op)]
    return [node]


def quantity(answer: str | None) -> str | None:
    """`$700 + $700 = $1,400.00` as `1400`: the number after the last `=`, where there is exactly one; else the text."""
    if answer is None or not answer.strip():
        return None
    result = answer.rpartition("=")[2].strip().casefold()
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?![\d:/])", result)
    if len(numbers) != 1 or re.search(r"\d[:/]\d", result):
        return result
    return f"{float(numbers[0].replace(',', '')):.6g}"


def formula(answer: str | None) -> str | None:
    """LaTeX without white space, sizes and other forms of the same sign."""
    if answer is None:
        return None
    short = re.sub(r"\\[!,;]|\\left|\\right|\s|\$", "", answer)
    return re.sub(r"\\[dt]frac", r"\\frac", short) or None
