"""Looping traces: a model that writes the same passage again and again does not come to an answer.

What is looked for is exact: the text's end consists of one passage, several times over. Loops that count on ("Case 12",
"Case 13") are not found, since honest enumerations look the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anabranch.strategies.best_of_n.pruning.base import alive, numbers
from anabranch.strategies.best_of_n.rules import Need, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least

_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looping:
    """Traces whose text ends in repetition. Order-free.

    The thresholds are our own. A recurring decimal, a row of a table that stands there ten times, or a sum of thirty equal
    terms are no loops: repetition has to go on for so many characters, more of them where it has no letters.

    Attributes:
        times: the passage stands there, whole, at least so often. Raises InvalidParameter below 2.
        least: characters that the repetition covers.
        least_wordless: the same, where the passage has no letter (digits, signs, lines of a table). Raises InvalidParameter
            where either is below 16.
        longest: characters of the passage. Raises InvalidParameter below 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    times: int = 4
    least: int = 600
    least_wordless: int = 4_000
    longest: int = 2_000

    def __post_init__(self) -> None:
        check_least("times", self.times, 2)
        check_least("least", self.least, 16)
        check_least("least_wordless", self.least_wordless, 16)
        check_least("longest", self.longest, 1)

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """Those that loop."""
        return numbers([trace for trace in alive(running, ended) if self.period(trace.text) is not None])

    def period(self, text: str) -> int | None:
        """Characters of the passage that the text ends with again and again; None where it doesn't.

        Looks at the end of the text alone, in time that does not grow with its length.
        """
        if len(text) < min(self.least, self.least_wordless):
            return None
        tail = text[-max(self.least, self.least_wordless, self.times * self.longest) :]
        needle = tail[-_overlap(min(self.least, self.least_wordless), self.times) :]
        letter = max((found.end() for found in _LETTERS.finditer(tail)), default=0)
        at = tail.rfind(needle, 0, len(tail) - 1)
        while at >= 0:
            period = len(tail) - len(needle) - at
            if period > self.longest:
                return None
            if self._loops(tail, period, worded=len(tail) - period < letter):
                return period
            at = tail.rfind(needle, 0, at + len(needle) - 1)
        return None

    def _loops(self, tail: str, period: int, *, worded: bool) -> bool:
        covered = max(self.times * period, self.least if worded else self.least_wordless)
        return covered <= len(tail) and tail[period - covered :] == tail[-covered:-period]


def _overlap(least: int, times: int) -> int:
    """How much of a repetition stands there again one passage earlier, at least, whatever the passage's length."""
    return least - least // times
