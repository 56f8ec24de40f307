"""A prior for batches, from how difficult the questions are (DSC, arXiv 2408.13457).

1. `rank` orders the questions, from several rounds in which a model ordered small batches of them.
2. From the hardest downwards each question gets a few traces. Where all traces of each of a window of neighbours agree,
   `boundary` says that the easier rest is easy: one trace each.
3. From the easiest of the hard ones upwards, `preallocation` says how many traces to ask for at once, from what its
   somewhat easier neighbours needed, and `Preallocated` asks for them, then for a few more at a time.

All of it is pure; who asks, and when, is the caller's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping.adaptive import Beta, Criterion
from anabranch.strategies.best_of_n.stopping.base import check_least, count_votes


def rank(batches: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All questions, the easiest first, by their mean place in the batches.

    Args:
        batches: each some of the questions, the easiest first. The place counts within a batch, from 0 to 1, so that
            batches may differ in size. Equal places keep the order of first appearance.
    """
    places: defaultdict[str, list[float]] = defaultdict(list)
    for batch in batches:
        for index, question in enumerate(batch):
            places[question].append((index + 0.5) / len(batch))
    return tuple(sorted(places, key=lambda question: fmean(places[question])))


def boundary(agreed: Sequence[bool], *, window: int = 32) -> int | None:
    """How many questions are hard; None where that cannot be told yet.

    Args:
        agreed: for the hardest, the next, and so on as far as they have been tried: all its traces gave one answer.
        window: so many neighbours must agree. Raises InvalidParameter below 1.
    """
    check_least("window", window, 1)
    ends = range(window, len(agreed) + 1)
    return next((end for end in ends if all(agreed[end - window : end])), None)


def preallocation(needed: Sequence[int], *, window: int = 16) -> int:
    """How many traces to ask for at once: the mean of what the last few needed, rounded up; 1 where nothing is known.

    Args:
        needed: for each easier question that is done, the easiest first (`Preallocated.needed`).
        window: so many of the last count. Raises InvalidParameter below 1.
    """
    check_least("window", window, 1)
    return math.ceil(fmean(needed[-window:])) if needed else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Preallocated:
    """A first lot at once, then a few at a time until the criterion is met. Order-free.

    Attributes:
        first: traces asked for at once. Raises InvalidParameter below 1.
        step: traces of an extension. Raises InvalidParameter below 1.
        criterion: when the vote is settled.
        most: traces. Raises InvalidParameter below 1.
    """

    first: int
    step: int = 4
    criterion: Criterion = field(default_factory=Beta)
    most: int = 40

    def __post_init__(self) -> None:
        for name, value in (("first", self.first), ("step", self.step), ("most", self.most)):
            check_least(name, value, 1)

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The first lot, then an extension, or no more."""
        if len(ended) < self.first:
            return min(self.most, self.first)
        return min(self.most, len(ended) + (0 if self._settled(ended) else self.step))

    def needed(self, ended: Sequence[Trace]) -> int:
        """After how many of these traces the vote was settled for the first time; all of them where it never was."""
        lengths = range(1, len(ended) + 1)
        return next((length for length in lengths if self._settled(ended[:length])), len(ended))

    def _settled(self, ended: Sequence[Trace]) -> bool:
        counted = count_votes(ended)
        return bool(counted) and self.criterion.met(counted)
