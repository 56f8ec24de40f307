"""Consensus: stop when nearly all votes, as they are weighted, are for one answer (DeepConf, arXiv 2508.15260)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping.base import check_least, check_share


def alike(trace: Trace) -> float:
    """Each vote counts the same."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """A first lot at once, then one more until an answer has this share of the votes. Order-free.

    Attributes:
        share: of the weight of all votes, above 0 and up to 1.
        least: traces asked for at once, the paper's warm-up, answered or not.
        most: traces. Raises InvalidParameter where `least` is below 1 or above it.
        weight: of a vote; 0 or more. Selection should weigh as this does.
    """

    share: float = 0.95
    least: int = 16
    most: int = 256
    weight: Callable[[Trace], float] = alike

    def __post_init__(self) -> None:
        check_share("share", self.share)
        check_least("least", self.least, 1)
        if self.least > self.most:
            raise InvalidParameter("least", f"must be at most `most`, which is {self.most}, got {self.least}")

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The first lot, then one more than have ended, or no more."""
        return min(self.most, max(self.least, len(ended) + (not self._agreed(ended))))

    def _agreed(self, ended: Sequence[Trace]) -> bool:
        weights: defaultdict[str, float] = defaultdict(float)
        for trace in ended:
            if trace.answer is not None:
                weights[trace.answer] += self.weight(trace)
        total = sum(weights.values())
        return total > 0 and max(weights.values()) >= self.share * total
