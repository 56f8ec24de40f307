"""Votes: the answer that most traces give, each alike, or weighed by its confidence or score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.confidence import Confidence
from anabranch.strategies.best_of_n.rules import Need, Selected, Trace
from anabranch.strategies.best_of_n.selection.base import (
    Preference,
    Weight,
    demand,
    elect,
    fallback,
    voters,
)
from anabranch.strategies.best_of_n.stopping.base import check_share
from anabranch.strategies.best_of_n.stopping.consensus import alike

Shown = Literal["best", "first", "longest", "shortest"]


def _score(trace: Trace) -> float:
    return -math.inf if trace.score is None else trace.score


_SHOWS: dict[Shown, Preference] = {
    "best": _score,
    "first": lambda trace: -trace.number,
    "longest": lambda trace: trace.tokens,
    "shortest": lambda trace: -trace.tokens,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote:
    """The answer that most traces give (self-consistency, arXiv 2203.11171). Order-free.

    Answers with as many votes each: the greater sum of scores wins, where all voters have one; else that of mean
    confidences, where all have those; else the answer of the trace that was asked for first.

    Attributes:
        shown: the winner's trace that is taken: of the best score (the first, without scores), the first asked for, the
            longest, or the shortest. Raises InvalidParameter on another word.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    shown: Shown = "best"

    def __post_init__(self) -> None:
        if self.shown not in get_args(Shown):
            raise InvalidParameter("shown", f"must be one of {', '.join(get_args(Shown))}, got {self.shown}")

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The winner; without a vote the first trace that came to its end, if any."""
        return elect(traces, alike, untie=_evidence(voters(traces)), shows=_SHOWS[self.shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceVote:
    """Votes weighed by the model's confidence, of the most confident traces (DeepConf offline, section 3.1). Order-free.

    Published: all traces by each of the four measures, and a tenth of them by `tail` and by `bottom`. Between answers of
    equal weight, that of the trace that was asked for first; the winner's most confident trace is taken.

    Attributes:
        confidence: the measure, of filter and weight alike.
        keep: share of the voters that is KEPT, the most confident ones; above 0, up to 1. As published, those at or above
            the (1 - keep) percentile, between which values are interpolated: one at least, and ties all.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"confidences"})

    confidence: Confidence = field(default_factory=Confidence)
    keep: float = 1.0

    def __post_init__(self) -> None:
        check_share("keep", self.keep)

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The winner; without a vote as `MajorityVote`. Raises MissingMeasure where a voter has no confidences, and
        InvalidParameter where one is below 0."""
        voting = voters(traces)
        if not voting:
            return fallback(traces)
        demand(voting, "confidences")
        weights = {trace.number: self.confidence(trace) for trace in voting}
        _check_positive("confidence", list(weights.values()))
        least = kept_from(list(weights.values()), self.keep)
        kept = [trace for trace in voting if weights[trace.number] >= least]
        return elect(kept, lambda trace: weights[trace.number])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreVote:
    """Votes weighed by a scorer's score: weighted best-of-N. Order-free.

    Between answers of equal weight, that of the trace that was asked for first; the winner's best trace is taken.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The winner; without a vote as `MajorityVote`. Raises MissingMeasure where a voter has no score, and
        InvalidParameter where one is below 0: a vote would count against its answer."""
        voting = voters(traces)
        demand(voting, "scores")
        _check_positive("score", [_score(trace) for trace in voting])
        return elect(traces, _score)


def kept_from(values: Sequence[float], keep: float) -> float:
    """The least of the values that are kept, where the greatest `keep` of them are; at least one value."""
    ranked = sorted(values)
    return ranked[math.ceil((1.0 - keep) * (len(ranked) - 1) - 1e-9)]


def _evidence(voting: Sequence[Trace]) -> Weight | None:
    """What a tie of the majority looks at."""
    if all(trace.score is not None for trace in voting):
        return _score
    return Confidence(measure="mean") if all(trace.confidences for trace in voting) else None


def _check_positive(field: str, weights: Sequence[float]) -> None:
    bad = [each for each in weights if not 0.0 <= each < math.inf]
    if bad:
        raise InvalidParameter(field, f"must be finite and at least 0, got {bad[0]:g}: map it there")
