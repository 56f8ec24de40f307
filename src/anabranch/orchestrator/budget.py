"""Budget: what a run may use. BudgetLedger: what it has used.

A run that reaches a limit answers with the best that it has. The ledger only counts and says no; stopping what is
in flight is the run's part.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import BudgetExhausted, InvalidParameter, Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run; None is unlimited.

    Attributes:
        tokens: completion tokens over all branches, wasted ones included.
        branches: generations that may be started.
        depth: generations on one chain of dependencies.
        deadline_s: seconds from the start of the run.

    Raises:
        InvalidParameter: a limit that is not positive.
    """

    tokens: int | None = None
    branches: int | None = None
    depth: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "branches", "depth", "deadline_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidParameter(
                    f"budget.{name}", f"must be positive, got {value}; leave it out for no limit"
                )


class BudgetLedger:
    """Counts what a run uses against its budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.tokens = 0
        self.branches = 0
        self.reached: list[Limit] = []
        """The limits that were reached, in that order."""

    @property
    def over(self) -> Limit | None:
        """The limit that ends the whole run, once it is reached: `tokens` or `deadline`."""
        return next((limit for limit in self.reached if limit in ("tokens", "deadline")), None)

    def admit(self, branch: Branch, max_tokens: int | None) -> int | None:
        """Count one more generation; returns its cap on completion tokens.

        Raises:
            BudgetExhausted: it does not fit.
        """
        budget = self.budget
        if self.over is not None:
            raise BudgetExhausted(self.over, "no further generation can start")
        if budget.branches is not None and self.branches >= budget.branches:
            raise self._refuse("branches", f"{budget.branches} generations were started")
        if budget.depth is not None and branch.depth >= budget.depth:
            raise self._refuse("depth", f"chain of {budget.depth} dependent generations")
        left = None if budget.tokens is None else budget.tokens - self.tokens
        if left is not None and left <= 0:
            raise self._refuse("tokens", f"{budget.tokens} completion tokens were generated")
        self.branches += 1
        return min((cap for cap in (left, max_tokens) if cap is not None), default=None)

    def charge(self, tokens: int) -> bool:
        """Count completion tokens; returns whether they used the budget up."""
        self.tokens += tokens
        return self.budget.tokens is not None and self.tokens >= self.budget.tokens

    def exhaust(self, limit: Limit) -> None:
        """Note that a limit was reached."""
        if limit not in self.reached:
            self.reached.append(limit)

    def _refuse(self, limit: Limit, detail: str) -> BudgetExhausted:
        self.exhaust(limit)
        return BudgetExhausted(limit, detail)
