"""What the stopping rules share: how votes are counted, how parameters are checked, and the rule of a fixed number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.rules import Trace


def count_votes(ended: Sequence[Trace]) -> tuple[int, ...]:
    """Votes for each answer, the greatest number first. A trace without an answer is no vote."""
    counted = Counter(trace.answer for trace in ended if trace.answer is not None)
    return tuple(sorted(counted.values(), reverse=True))


def check_least(field: str, value: float, least: float) -> None:
    """Raises InvalidParameter where `value` is smaller than that."""
    if not value >= least:
        raise InvalidParameter(field, f"must be at least {least}, got {value}")


def check_inside(field: str, value: float, low: float = 0.0, high: float = 1.0) -> None:
    """Raises InvalidParameter where `value` is not strictly between the two."""
    if not low < value < high:
        raise InvalidParameter(field, f"must be between {low:g} and {high:g}, both excluded, got {value}")


def check_share(field: str, value: float) -> None:
    """Raises InvalidParameter where `value` is no share of votes."""
    if not 0.0 < value <= 1.0:
        raise InvalidParameter(field, f"must be above 0 and at most 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Always the same number (self-consistency, arXiv 2203.11171). Order-free.

    Attributes:
        n: traces. Raises InvalidParameter below 1.
    """

    n: int

    def __post_init__(self) -> None:
        check_least("n", self.n, 1)

    @property
    def most(self) -> int:
        """The number."""
        return self.n

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The number, whatever has ended."""
        return self.n
