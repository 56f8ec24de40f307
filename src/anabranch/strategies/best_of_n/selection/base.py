"""What the selection rules share: who may vote, how votes are weighed, and what is taken where nobody votes.

All sums are rounded once, and every tie ends with the trace that was asked for first, so the order in which traces
ended changes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.strategies.best_of_n.rules import MissingMeasure, Need, Selected, Trace

Weight = Callable[[Trace], float]
"""Of a vote; 0 or more."""

Preference = Callable[[Trace], Any]
"""Which of an answer's traces shows it: the greatest."""


def voters(traces: Sequence[Trace]) -> list[Trace]:
    """Those that came to their end with an answer, in the order of asking."""
    voting = (trace for trace in traces if trace.complete and trace.answer is not None)
    return sorted(voting, key=lambda trace: trace.number)


def demand(traces: Sequence[Trace], need: Need) -> None:
    """Raises MissingMeasure where a trace lacks what a rule needs."""
    lacking = [
        trace.number for trace in traces if (trace.score is None if need == "scores" else not trace.confidences)
    ]
    if lacking:
        raise MissingMeasure(need, lacking)


def fallback(traces: Sequence[Trace]) -> Selected | None:
    """Where nobody votes: the trace that was asked for first among those that came to their end; None without any."""
    whole = [trace.number for trace in traces if trace.complete]
    return Selected(number=min(whole)) if whole else None


def elect(
    traces: Sequence[Trace],
    weight: Weight,
    *,
    untie: Weight | None = None,
    shows: Preference | None = None,
) -> Selected | None:
    """The answer of the greatest weight, shown by one of its traces; `fallback` where nobody votes.

    Args:
        traces: those that may vote; the others do not.
        weight: of a vote, 0 or more.
        untie: summed up where answers have the same weight; the greater sum wins.
        shows: which of the winner's traces is taken; the one of greatest weight without it.
    """
    ballots: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in voters(traces):
        ballots[trace.answer or ""].append(trace)
    if not ballots:
        return fallback(traces)
    totals = {answer: math.fsum(map(weight, own)) for answer, own in ballots.items()}
    second = {answer: math.fsum(map(untie, own)) if untie else 0.0 for answer, own in ballots.items()}
    # Answers stand in the order of asking, and `max` takes the first of equals.
    winner = max(ballots, key=lambda answer: (totals[answer], second[answer]))
    shown = max(ballots[winner], key=shows or weight)
    return Selected(number=shown.number, answer=winner, shares=shares(totals))


def shares(totals: Mapping[str, float]) -> Mapping[str, float]:
    """Each answer's part of the whole, the greatest first; equal parts where all weigh nothing."""
    whole = math.fsum(totals.values())
    parts = {answer: own / whole if whole else 1 / len(totals) for answer, own in totals.items()}
    return dict(sorted(parts.items(), key=lambda item: -item[1]))
