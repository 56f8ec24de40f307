"""One trace is taken for itself, whatever the others say: the best, the longest, the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anabranch.strategies.best_of_n.rules import Need, Selected, Trace
from anabranch.strategies.best_of_n.selection.base import Preference, demand, elect, fallback, voters
from anabranch.strategies.best_of_n.stopping.consensus import alike


@dataclass(frozen=True, slots=True, kw_only=True)
class BestScore:
    """The trace with the greatest score; of equals the one that was asked for first. Order-free.

    Where a trace has an answer, only those with answers are compared: else all that came to their end, so that open-ended
    texts can be selected, too.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """None where no trace came to its end. Raises MissingMeasure where one that is compared has no score."""
        compared = voters(traces) or [trace for trace in traces if trace.complete]
        demand(compared, "scores")
        return _take(traces, compared, lambda trace: trace.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """The trace with most tokens among those with answers; of equals the one that was asked for first. Order-free.

    A baseline: long traces are no better in general.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """Without an answer the first trace that came to its end, if any."""
        return _take(traces, voters(traces), lambda trace: trace.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The trace with an answer that was asked for first: what one sample would have said. Order-free."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """Without an answer the first trace that came to its end, if any."""
        return _take(traces, voters(traces), lambda trace: -trace.number)


def _take(traces: Sequence[Trace], compared: Sequence[Trace], by: Preference) -> Selected | None:
    """The greatest; the shares are those of a plain vote."""
    if not compared:
        return fallback(traces)
    taken = max(compared, key=lambda trace: (by(trace), -trace.number))
    vote = elect(traces, alike)
    return Selected(number=taken.number, answer=taken.answer, shares=vote.shares if vote else {})
