"""Stopping rules of best-of-N: how many traces are enough. One file for each family.

All are pure. A trace without an answer is no vote, but one of the traces; no rule wants more than its `most`. A rule
that calls itself order-free looks at which traces have ended, not in which order.
"""

from anabranch.strategies.best_of_n.stopping.adaptive import (
    AdaptiveConsistency,
    Beta,
    Criterion,
    Dirichlet,
    Entropy,
    Majority,
)
from anabranch.strategies.best_of_n.stopping.allocation import allocate, best_score_gains, success_gains
from anabranch.strategies.best_of_n.stopping.base import Fixed
from anabranch.strategies.best_of_n.stopping.consensus import Consensus
from anabranch.strategies.best_of_n.stopping.difficulty import Preallocated, boundary, preallocation, rank
from anabranch.strategies.best_of_n.stopping.esc import ESC
from anabranch.strategies.best_of_n.stopping.optscale import OptScale
from anabranch.strategies.best_of_n.stopping.tokens import TokenBudget
from anabranch.strategies.best_of_n.stopping.waves import Waves

__all__ = [
    "ESC",
    "AdaptiveConsistency",
    "Beta",
    "Consensus",
    "Criterion",
    "Dirichlet",
    "Entropy",
    "Fixed",
    "Majority",
    "OptScale",
    "Preallocated",
    "TokenBudget",
    "Waves",
    "allocate",
    "best_score_gains",
    "boundary",
    "preallocation",
    "rank",
    "success_gains",
]
