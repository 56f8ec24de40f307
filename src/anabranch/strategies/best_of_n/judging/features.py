"""What two partial traces have in common, as numbers: what a small judge learns from. No model, no state.

All features are symmetric in the two texts, and within 0 .. 1 (`nothing`, `boxed ...` are 0 or 1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

FEATURES = (
    "numbers shared",
    "numbers contained",
    "numbers alike in count",
    "last numbers shared",
    "results shared",
    "results contained",
    "last result the same",
    "expressions shared",
    "expressions contained",
    "words shared",
    "word pairs shared",
    "beginning shared",
    "structure alike",
    "length alike",
    "steps alike",
    "boxed the same",
    "boxed differ",
)
"""Names of the features, in the order of the vector."""

LAST = 8
"""Numbers at the end that count as the latest."""

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_EXPRESSION = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$?(.+?)\$\$?", re.DOTALL)
_RESULT = re.compile(r"=\s*([^=\n]+?)\s*(?=[=\n$]|\\\]|\\\)|[.,;]?\s*$)")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_WORD = re.compile(r"[^\W\d_]{2,}")


def features(first: str, second: str) -> NDArray[np.float64]:
    """The vector of `FEATURES`: shape (17,), float64. The order of the two texts makes no difference."""
    one, other = _Seen(first), _Seen(second)
    mine, theirs = one.boxed, other.boxed
    return np.array(
        [
            shared(one.numbers, other.numbers),
            contained(one.numbers, other.numbers),
            alike_in_count(one.numbers, other.numbers),
            shared(one.numbers[-LAST:], other.numbers[-LAST:]),
            shared(one.results, other.results),
            contained(one.results, other.results),
            float(one.results[-1:] == other.results[-1:] != []),
            shared(one.expressions, other.expressions),
            contained(one.expressions, other.expressions),
            shared(one.words, other.words),
            shared(list(pairwise(one.words)), list(pairwise(other.words))),
            beginning(one.words, other.words),
            structure(one.outline, other.outline),
            ratio(len(first), len(second)),
            ratio(one.steps, other.steps),
            float(bool(mine and mine == theirs)),
            float(bool(mine and theirs and mine != theirs)),
        ]
    )


class _Seen:
    """What the features look at in one text."""

    def __init__(self, text: str) -> None:
        self.numbers = [found.replace(",", "") for found in _NUMBER.findall(text)]
        self.expressions = [plain("".join(groups)) for groups in _EXPRESSION.findall(text)]
        self.results = [plain(found) for found in _RESULT.findall(text)]
        self.words = [found.casefold() for found in _WORD.findall(text)]
        self.boxed = frozenset(plain(found) for found in _BOXED.findall(text))
        self.outline = "".join(_kind(line) for line in text.splitlines())
        self.steps = len([part for part in text.split("\n\n") if part.strip()])


def plain(formula: str) -> str:
    """A formula without white space, sizes, and signs of the text around it."""
    short = re.sub(r"\\left|\\right|\\[,;!:]|[\s$]|\\text\{[^{}]*\}|\\[\[\]()]", "", formula)
    return re.sub(r"\\[dt]frac", r"\\frac", short).rstrip(".,;:")


def shared(first: Collection[Hashable], second: Collection[Hashable]) -> float:
    """Of all that either has, what both have; 0 where neither has any."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one or other else 0.0


def contained(first: Collection[Hashable], second: Collection[Hashable]) -> float:
    """Of what the one that has less has, what the other has, too; 0 where it has nothing."""
    one, other = set(first), set(second)
    return ratio_of(len(one & other), min(len(one), len(other)))


def alike_in_count(first: Iterable[Hashable], second: Iterable[Hashable]) -> float:
    """As `shared`, with how often each is there."""
    one, other = Counter(first), Counter(second)
    return ratio_of((one & other).total(), (one | other).total())


def beginning(first: Sequence[str], second: Sequence[str]) -> float:
    """How much of the shorter one's beginning is also the other's."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    return ratio_of(same, min(len(first), len(second)))


def structure(first: str, second: str) -> float:
    """How alike two outlines are, each a letter for a line."""
    one, other = sorted((first, second))  # the matcher is not symmetric
    return SequenceMatcher(None, one, other, autojunk=False).ratio() if one or other else 0.0


def ratio(first: int, second: int) -> float:
    """The smaller of the greater; 0 where both are 0."""
    return ratio_of(min(first, second), max(first, second))


def ratio_of(part: int, whole: int) -> float:
    """A part of a whole that may be nothing."""
    return part / whole if whole else 0.0


def _kind(line: str) -> str:
    """What kind of line it is: blank, a heading, an item, a formula, a table's, or prose."""
    short = line.strip()
    if not short:
        return "_"
    if short.startswith("#"):
        return "h"
    if re.match(r"[-*+] |\d+[.)] ", short):
        return "i"
    if short.startswith(("\\[", "$$", "\\begin", "\\end", "&")):
        return "f"
    return "t" if short.startswith("|") else "p"
