"""Waves: makes any rule ask for several traces at a time.

A rule that looks after each trace is the thriftiest, and the slowest: each trace waits for the one before it. In waves
the time is that of the waves, and the price at most the last wave's traces, less one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.strategies.best_of_n.rules import StoppingRule, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """What the rule wants, rounded up to the end of a wave. Order-free where the rule is.

    A wave is waited for to its end, so that the traces that end first, which are the short ones, don't decide alone.

    Attributes:
        rule: any other.
        size: traces of the first wave. Raises InvalidParameter below 1.
        growth: each wave is so many times as large as the one before, rounded up: 1 is 5, 5, 5, ..., 2 is 5, 10, 20, ...
            Raises InvalidParameter below 1.
        eager: the rule may say enough within a wave, too; what still runs of it is then useless.
    """

    rule: StoppingRule
    size: int = 5
    growth: float = 1.0
    eager: bool = False

    def __post_init__(self) -> None:
        check_least("size", self.size, 1)
        check_least("growth", self.growth, 1)

    @property
    def most(self) -> int:
        """That of the rule."""
        return self.rule.most

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The end of the wave in which the rule would have enough, as far as it can tell."""
        asked = self.rule.wanted(ended)
        if self.eager and asked <= len(ended):
            return asked
        return min(self.most, self._end(max(len(ended), asked)))

    def _end(self, traces: int) -> int:
        """Where the wave of the last of these ends; 0 before the first."""
        end, wave = 0, self.size
        while end < traces:
            end, wave = end + wave, math.ceil(wave * self.growth)
        return end
