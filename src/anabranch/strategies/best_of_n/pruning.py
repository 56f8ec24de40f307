"""Pruning rules: which running traces are not worth going on with. Pure, and any of them together."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.strategies.best_of_n import confidence
from anabranch.strategies.best_of_n.rules import PruningRule, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least, check_share

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LowConfidence:
    """Stops a trace as soon as a full group of it is less sure than most warm-up traces ever were (DeepConf, section 3.2).

    After `warm_up` complete traces the threshold is such that the share `keep` of them have their lowest group at
    or above it. "DeepConf-low" keeps 0.1 and saves most, "DeepConf-high" keeps 0.9; its codes call the same number
    by opposite names, so here it is the side that is kept. A trace that is shorter than a window is never stopped.

    Attributes:
        keep: above 0, up to 1.
        warm_up: complete traces with confidences that are waited for.
        window: tokens of a group. Raises InvalidParameter below 1.
    """

    keep: float = 0.1
    warm_up: int = 16
    window: int = confidence.WINDOW
    _last: list[tuple[list[Trace], float]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The warm-up traces that were looked at last, and their threshold: it is asked for every few tokens."""

    def __post_init__(self) -> None:
        check_share("keep", self.keep)
        check_least("warm_up", self.warm_up, 1)
        check_least("window", self.window, 1)

    def threshold(self, ended: Sequence[Trace]) -> float | None:
        """What a group must reach; None before the warm-up is over."""
        known = [trace for trace in ended if trace.complete and trace.confidences][: self.warm_up]
        if len(known) < self.warm_up:
            return None
        if not self._last or not all(map(operator.is_, self._last[0][0], known)):
            self._last[:] = [(known, self._computed(known))]
        return self._last[0][1]

    def _computed(self, known: Sequence[Trace]) -> float:
        lowest = sorted(confidence.of_trace(trace.confidences, "lowest", self.window) for trace in known)
        return lowest[len(lowest) - math.ceil(self.keep * len(lowest))]

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """Those whose last group is below the threshold."""
        least = self.threshold(ended)
        if least is None:
            return NONE
        full = [trace for trace in running if len(trace.confidences) >= self.window]
        return frozenset(
            trace.number
            for trace in full
            if math.fsum(trace.confidences[-self.window :]) / self.window < least - 1e-12
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looping:
    """Stops a trace that says the same again and again: its end is one piece of text, many times over.

    Attributes:
        least: characters that must be repetition, and `times` that the piece must be there. Digits and signs alone
            are no loop: long numbers, lines of a table.
        longest: characters of the longest piece that is looked for.
    """

    least: int = 240
    times: int = 4
    longest: int = 600

    def __post_init__(self) -> None:
        check_least("times", self.times, 2)
        check_least("least", self.least, 1)

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """Those that loop."""
        return frozenset(trace.number for trace in running if self.loops(trace.text))

    def loops(self, text: str) -> bool:
        """Whether a text ends in a loop."""
        tail = text[-max(self.least, self.longest * self.times) :]
        return any(self._repeats(tail, period) for period in _periods(tail, self.longest))

    def _repeats(self, tail: str, period: int) -> bool:
        length = max(self.least, period * self.times)
        if len(tail) < length:
            return False
        end = tail[-length:]
        piece = end[-period:]
        words = any(character.isalpha() for character in piece)
        return words and end[period:] == end[:-period]


def _periods(tail: str, longest: int) -> list[int]:
    """Lengths that a repeated piece can have: distances from its end to where its last characters stood before."""
    probe = tail[-12:]
    found, place = [], len(tail) - len(probe)
    while len(probe) == 12 and (place := tail.rfind(probe, 0, place + len(probe) - 1)) >= 0:
        if (period := len(tail) - len(probe) - place) > longest:
            break
        found.append(period)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Stops all that run once no trace that may yet come could change an unweighted vote, were they all to agree.

    Attributes:
        most: traces that there may be in all.
    """

    most: int

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """All or none. Order-free."""
        votes = Counter(trace.answer for trace in ended if trace.complete and trace.answer is not None)
        (_, first), (_, second) = (*votes.most_common(2), ("", 0), ("", 0))[:2]
        return frozenset(trace.number for trace in running) if first > second + self.most - len(ended) else NONE


@dataclass(frozen=True, slots=True)
class Together:
    """Stops what any of several rules stops."""

    rules: tuple[PruningRule, ...]

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """The union."""
        return NONE.union(*(rule.pruned(running, ended) for rule in self.rules))
