"""Selection rules: which answer to take. Pure; equal strings are equivalent answers.

A trace that has no answer, or did not come to its end, is no vote. Ties go to the answer that came first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.strategies.best_of_n import confidence
from anabranch.strategies.best_of_n.rules import Selected, Trace
from anabranch.strategies.best_of_n.stopping.base import check_share

Weight = Literal["one", "score", "mean", "tail", "bottom", "lowest"]
"""What a vote weighs: as any other, its score, or a measure of its confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The answer with the greatest weight of votes (self-consistency, arXiv 2203.11171; weighted: DeepConf, section 3.1).

    Its text is that of the heaviest of its traces, the first of several.

    Attributes:
        weight: of a vote. Where any voter lacks what is to be weighed, `missing` says so, and all weigh the same.
        keep: share of the voters that vote: those with the greatest weights. DeepConf keeps 0.1 or 0.9; its two codes
            give the same names to opposite sides. At least one voter is kept.
        window: tokens of a group.
    """

    weight: Weight = "one"
    keep: float = 1.0
    window: int = confidence.WINDOW

    def __post_init__(self) -> None:
        check_share("keep", self.keep)

    def missing(self, traces: Sequence[Trace]) -> bool:
        """Whether a voter lacks what its vote is to be weighed by."""
        return any(self._own_weight(trace) is None for trace in voters(traces))

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The vote; None without voters."""
        weighed = self._weighed(voters(traces))
        if not weighed:
            return None
        sums: defaultdict[str, float] = defaultdict(float)
        for trace, weight in weighed:
            assert trace.answer is not None
            sums[trace.answer] += weight
        answer = max(sums, key=lambda each: sums[each])  # max takes the first of several
        best, _ = max((pair for pair in weighed if pair[0].answer == answer), key=lambda pair: pair[1])
        total = math.fsum(sums.values())
        shares = {
            each: sums[each] / total if total else 0.0 for each in sorted(sums, key=lambda each: -sums[each])
        }
        return Selected(number=best.number, answer=answer, shares=shares)

    def _weighed(self, voting: Sequence[Trace]) -> list[tuple[Trace, float]]:
        """Those that vote, and with what weight, in the order of asking."""
        weights = [self._own_weight(trace) for trace in voting]
        if any(weight is None for weight in weights):
            return [(trace, 1.0) for trace in voting]
        pairs = [(trace, weight) for trace, weight in zip(voting, weights, strict=True) if weight is not None]
        kept = sorted(pairs, key=lambda pair: -pair[1])[: math.ceil(self.keep * len(pairs))]
        return sorted(kept, key=lambda pair: pair[0].number)

    def _own_weight(self, trace: Trace) -> float | None:
        match self.weight:
            case "one":
                return 1.0
            case "score":
                return None if trace.score is None else max(trace.score, 0.0)
            case measure:
                return (
                    confidence.of_trace(trace.confidences, measure, self.window) if trace.confidences else None
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestScore:
    """The trace with the best score; also for text that has no answer to compare (Best-of-N with a reward model)."""

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The first of the best; None where none that came to its end has a score."""
        scored = [trace for trace in traces if trace.complete and trace.score is not None]
        if not scored:
            return None
        best = max(scored, key=lambda trace: trace.score if trace.score is not None else -math.inf)
        return Selected(number=best.number, answer=best.answer)


def voters(traces: Sequence[Trace]) -> list[Trace]:
    """The traces that vote, in the order of asking."""
    voting = [trace for trace in traces if trace.complete and trace.answer is not None]
    return sorted(voting, key=lambda trace: trace.number)
