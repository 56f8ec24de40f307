"""DeepConf online: a trace stops as soon as the model is less sure of a group of tokens than in good traces (§3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anabranch.strategies.best_of_n.confidence import WINDOW, Confidence
from anabranch.strategies.best_of_n.pruning.base import alive, numbers
from anabranch.strategies.best_of_n.rules import MissingMeasure, Need, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least, check_share


@dataclass(frozen=True, slots=True, kw_only=True)
class LowConfidence:
    """Traces of which a group is below a threshold that the first complete traces set. Depends on the order: that
    decides who is in the warm-up.

    The threshold is a percentile of the lowest-group confidences of the warm-up. A published parameter of this kind means
    one side in one place and the other in another; here it is the share that is KEPT: `keep=0.9` prunes about as low as the
    lowest tenth of the warm-up ("high" in the paper), `keep=0.1` prunes all but traces like its best tenth ("low").

    A trace of fewer tokens than a window is never pruned. Who writes traces token by token need not ask this rule for
    each: `Window.full and Window.lowest < threshold(ended)` is the same.

    Attributes:
        keep: share of traces like the warm-up that is KEPT; above 0, up to 1.
        warm_up: complete traces, the first that there are. Raises InvalidParameter below 1.
        window: tokens of a group. Raises InvalidParameter below 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"confidences"})

    keep: float = 0.9
    warm_up: int = 16
    window: int = WINDOW

    def __post_init__(self) -> None:
        check_share("keep", self.keep)
        check_least("warm_up", self.warm_up, 1)
        check_least("window", self.window, 1)

    def threshold(self, ended: Sequence[Trace]) -> float | None:
        """Least confidence of a group; None before the warm-up is over.

        The (1 - keep) percentile, between values interpolated. Raises MissingMeasure where a trace of the warm-up has
        tokens and no confidences.
        """
        whole = [trace for trace in ended if trace.complete and _measured(trace)]
        if len(whole) < self.warm_up:
            return None
        lowest = Confidence(measure="lowest", window=self.window)
        return float(np.quantile([lowest(trace) for trace in whole[: self.warm_up]], 1.0 - self.keep))

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """Those with a full window below the threshold, wherever it was. Raises MissingMeasure as `threshold` does."""
        left = [trace for trace in alive(running, ended) if _measured(trace)]
        threshold = self.threshold(ended)
        if threshold is None:
            return frozenset()
        lowest = Confidence(measure="lowest", window=self.window)
        return numbers(
            [trace for trace in left if len(trace.confidences) >= self.window and lowest(trace) < threshold]
        )


def _measured(trace: Trace) -> bool:
    """Whether it has confidences; a trace that has not begun need not."""
    if trace.tokens and not trace.confidences:
        raise MissingMeasure("confidences", [trace.number])
    return bool(trace.confidences)
