"""DeepConf's measures of how sure a model was of what it wrote (arXiv 2508.15260, section 2). Pure.

The confidence of a token is minus the mean log-probability of the likeliest candidates in its place: the greater, the surer,
since a sure model gives the others next to nothing. That of a group is the mean over a window of tokens that ends with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import Literal

from anabranch.orchestrator.backend import TokenLogprob

WINDOW = 2048
CANDIDATES = 20
Measure = Literal["mean", "tail", "bottom", "lowest"]
"""Of a whole trace: the mean over its tokens; over the last window; over the lowest tenth of its groups; its lowest group."""


def of_token(token: TokenLogprob) -> float | None:
    """The confidence of a token; None where the server gave no candidates."""
    found = [logprob for _, logprob in token.top if math.isfinite(logprob)]
    return -fmean(found) if found else None


def of_trace(confidences: Sequence[float], measure: Measure, window: int = WINDOW) -> float:
    """A measure of a trace, from the confidences of its tokens, of which there is at least one."""
    match measure:
        case "mean":
            return fmean(confidences)
        case "tail":
            return fmean(confidences[-window:])
        case "lowest":
            return min(groups(confidences, window))
        case "bottom":
            found = sorted(groups(confidences, window))
            return fmean(found[: max(1, len(found) // 10)])


def groups(confidences: Sequence[float], window: int = WINDOW) -> list[float]:
    """The confidence of each full group; of a trace that is shorter than a window, its own."""
    size = min(window, len(confidences))
    sums = [0.0, *accumulate(confidences)]
    return [(after - before) / size for before, after in zip(sums, sums[size:], strict=False)]


@dataclass(slots=True)
class Window:
    """The confidence of the last group while a trace is being written.

    Attributes:
        size: tokens of a group.
    """

    size: int = WINDOW
    _held: deque[float] = field(default_factory=deque)
    _sum: float = 0.0

    def feed(self, confidence: float) -> float | None:
        """Add a token; the mean of the group that it ends, None before the first is full."""
        self._held.append(confidence)
        self._sum += confidence
        if len(self._held) > self.size:
            self._sum -= self._held.popleft()
        return self._sum / self.size if len(self._held) == self.size else None
