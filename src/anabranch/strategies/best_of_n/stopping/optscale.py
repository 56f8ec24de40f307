"""OptScale: as many traces as it takes for the best score to be good enough, probably (arXiv 2506.22376)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping.base import check_inside, check_least
from anabranch.strategies.best_of_n.stopping.truncated import TruncatedNormal


@dataclass(frozen=True, slots=True, kw_only=True)
class OptScale:
    """The smallest N for which the lower percentile of the greatest of N scores reaches a target. Order-free.

    Scores are taken as draws from a normal distribution cut to 0 .. 1, fitted anew to all scores each time; the paper's
    variant without a trained predictor (its best rows chose target and percentile on the test set). Meant for answers
    that are selected by score.

    Attributes:
        target: score that the best should have, between 0 and 1.
        percentile: risk that it hasn't, between 0 and 1.
        first: scores before the first fit, asked for at once: 3 to 10 in the paper. Raises InvalidParameter below 2.
        most: traces. Raises InvalidParameter below 1.
    """

    target: float = 0.95
    percentile: float = 0.05
    first: int = 5
    most: int = 64

    def __post_init__(self) -> None:
        check_inside("target", self.target)
        check_inside("percentile", self.percentile)
        check_least("first", self.first, 2)
        check_least("most", self.most, 1)

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The first lot, then what the fit says. Raises InvalidParameter on a score outside 0 .. 1."""
        scores = sorted(trace.score for trace in ended if trace.score is not None)
        if scores and not 0.0 <= scores[0] <= scores[-1] <= 1.0:
            raise InvalidParameter(
                "score", f"must be within 0 to 1, got {scores[0]:g} to {scores[-1]:g}: map it there"
            )
        if len(scores) < self.first:
            return min(self.most, len(ended) + self.first - len(scores))
        unscored = len(ended) - len(scores)
        needed = TruncatedNormal.fit(scores).draws(self.target, self.percentile)
        return int(min(self.most, max(len(ended), unscored + needed)))
