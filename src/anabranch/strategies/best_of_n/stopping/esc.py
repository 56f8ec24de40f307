"""ESC, early-stopping self-consistency: windows of a few traces, until all of one agree (arXiv 2401.10480)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping.base import check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ESC:
    """Window after window, until a whole one gives one answer. Depends on the order: that decides who is in a window.

    A window in which a trace has no answer doesn't agree, nor does one that `most` cuts short.

    Attributes:
        window: traces of a window, asked for together. Raises InvalidParameter below 2.
        most: traces. Raises InvalidParameter below 1.
    """

    window: int = 5
    most: int = 40

    def __post_init__(self) -> None:
        check_least("window", self.window, 2)
        check_least("most", self.most, 1)

    def wanted(self, ended: Sequence[Trace]) -> int:
        """To the end of the window, or no more."""
        starts = range(0, len(ended) - self.window + 1, self.window)
        if any(self._agrees(ended[start : start + self.window]) for start in starts):
            return min(self.most, len(ended))
        return min(self.most, (len(ended) // self.window + 1) * self.window)

    def _agrees(self, window: Sequence[Trace]) -> bool:
        answers = {trace.answer for trace in window}
        return len(answers) == 1 and None not in answers
