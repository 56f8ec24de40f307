"""DeepConf's confidence: how sure a model was of its tokens, of groups of them, of a whole trace (arXiv 2508.15260).

A token's confidence is minus the mean log-probability of its likeliest candidates: great where one candidate has nearly
all probability. A group's is the mean over a window of tokens; a trace shorter than a window is one group. `Window` takes
tokens as they come, `Confidence` a whole trace; both give the same figures, up to rounding.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import MissingMeasure, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least, check_share

TOP = 20
"""Candidates of a token that count."""

WINDOW = 2048
"""Tokens of a group."""

BOTTOM = 0.1
"""Share of the groups, those of least confidence, that `bottom` is the mean of."""

Measure = Literal["mean", "tail", "bottom", "lowest"]
"""Of a trace: over all tokens, over the last window, over the lowest tenth of the groups, of the lowest group."""


def token_confidence(logprobs: Sequence[float], *, top: int = TOP) -> float:
    """Minus the mean of the `top` greatest log-probabilities (natural, in any order); of all, where there are fewer.

    A candidate that can't come (minus infinity) is left out. Raises InvalidParameter where none is left, and on NaN.
    """
    check_least("top", top, 1)
    if any(math.isnan(each) for each in logprobs):
        raise InvalidParameter("logprobs", "must be numbers, got NaN")
    finite = sorted((each for each in logprobs if each > -math.inf), reverse=True)[:top]
    if not finite:
        raise InvalidParameter("logprobs", "a token needs a candidate with a finite log-probability")
    return -math.fsum(finite) / len(finite)


def group_means(confidences: Sequence[float], window: int = WINDOW) -> NDArray[np.float64]:
    """The confidence of each group: shape (n - window + 1,), or (1,) where there are fewer tokens than a window.

    Raises InvalidParameter without tokens, and on one that is not finite.
    """
    check_least("window", window, 1)
    values: NDArray[np.float64] = np.asarray(confidences, dtype=np.float64)
    if not values.size or not np.isfinite(values).all():
        raise InvalidParameter("confidences", "must be finite numbers, at least one")
    centre = float(np.mean(values))
    if values.size <= window:
        return np.full(1, centre)
    # Sums of deviations stay small, so that a long trace is not rounded more than a short one.
    sums = np.concatenate((np.zeros(1), np.cumsum(values - centre)))
    means: NDArray[np.float64] = centre + (sums[window:] - sums[:-window]) / window
    return means


def bottom_mean(means: NDArray[np.float64], share: float = BOTTOM) -> float:
    """The mean of this share of the groups, those of least confidence; of one at least (rounded down, as published)."""
    count = max(1, math.floor(means.size * share + 1e-9))
    return float(np.partition(means, count - 1)[:count].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """A trace's confidence by one measure; can be the weight of its vote.

    Attributes:
        measure: which. Raises InvalidParameter where there is no such measure.
        window: tokens of a group, and of the tail. Raises InvalidParameter below 1.
        share: of the groups that `bottom` looks at, above 0 and up to 1.
    """

    measure: Measure = "lowest"
    window: int = WINDOW
    share: float = BOTTOM

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure):
            raise InvalidParameter(
                "measure", f"must be one of {', '.join(get_args(Measure))}, got {self.measure}"
            )
        check_least("window", self.window, 1)
        check_share("share", self.share)

    def __call__(self, trace: Trace) -> float:
        """Raises MissingMeasure where the trace has no confidences."""
        if not trace.confidences:
            raise MissingMeasure("confidences", [trace.number])
        match self.measure:
            case "mean":
                return math.fsum(trace.confidences) / len(trace.confidences)
            case "tail":
                tail = trace.confidences[-self.window :]
                return math.fsum(tail) / len(tail)
            case "bottom":
                return bottom_mean(group_means(trace.confidences, self.window), self.share)
            case "lowest":
                return float(group_means(trace.confidences, self.window).min())


class Window:
    """The measures of a trace that is being written, a token at a time, each in constant time on average.

    Attributes:
        size: tokens of a group.
        tokens: so far.
    """

    def __init__(self, size: int = WINDOW) -> None:
        check_least("window", size, 1)
        self.size, self.tokens = size, 0
        self._ring = array("d")
        self._sum = self._total = 0.0
        self._means = array("d")
        self._lowest = math.inf

    def add(self, confidence: float) -> None:
        """The next token. Raises InvalidParameter where its confidence is not finite."""
        if not math.isfinite(confidence):
            raise InvalidParameter("confidence", f"must be finite, got {confidence}")
        place = self.tokens % self.size
        self.tokens += 1
        self._total += confidence
        if self.tokens <= self.size:
            self._ring.append(confidence)
            self._sum += confidence
        else:
            self._sum += confidence - self._ring[place]
            self._ring[place] = confidence
        if place == self.size - 1:
            self._sum = math.fsum(self._ring)  # once a window: rounding does not add up
        if self.full:
            self._means.append(self._sum / self.size)
            self._lowest = min(self._lowest, self._means[-1])

    @property
    def full(self) -> bool:
        """Whether there has been a whole window."""
        return self.tokens >= self.size

    @property
    def mean(self) -> float:
        """Over all tokens. Like the others it raises ValueError before the first token."""
        self._check()
        return self._total / self.tokens

    @property
    def tail(self) -> float:
        """Over the last window, or all tokens where there are fewer."""
        self._check()
        return self._sum / len(self._ring)

    @property
    def lowest(self) -> float:
        """Of the group of least confidence so far; over all tokens while there is no full window."""
        return self._lowest if self.full else self.tail

    def bottom(self, share: float = BOTTOM) -> float:
        """Over the groups of least confidence so far; takes time in proportion to the tokens."""
        check_share("share", share)
        return bottom_mean(np.asarray(self._means), share) if self.full else self.tail

    def _check(self) -> None:
        if not self.tokens:
            raise ValueError("a window without tokens has no confidence")
