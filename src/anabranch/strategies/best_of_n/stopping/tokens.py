"""A token budget: as many traces as will probably fit. The run's own budget is what stops it for certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.strategies.best_of_n.rules import StoppingRule, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """What the rule wants, as far as the tokens last. Order-free where the rule is.

    A trace to come is taken to be as long as the mean of those that have ended, so the budget is kept on average, and
    may be exceeded by the difference.

    Attributes:
        rule: any other; `Fixed` for nothing but the budget.
        tokens: completion tokens, for all traces together. Raises InvalidParameter below 1.
        first: traces asked for while no length is known. Raises InvalidParameter below 1.
    """

    rule: StoppingRule
    tokens: int
    first: int = 1

    def __post_init__(self) -> None:
        check_least("tokens", self.tokens, 1)
        check_least("first", self.first, 1)

    @property
    def most(self) -> int:
        """That of the rule."""
        return self.rule.most

    def wanted(self, ended: Sequence[Trace]) -> int:
        """The smaller of both numbers."""
        return min(self.rule.wanted(ended), self._affordable(ended))

    def _affordable(self, ended: Sequence[Trace]) -> int:
        spent = sum(trace.tokens for trace in ended)
        if spent == 0:
            return len(ended) + self.first
        left = max(0, self.tokens - spent)
        return len(ended) + left * len(ended) // spent
