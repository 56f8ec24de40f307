"""Best-of-N: many traces from one prefix, fewer and fewer of the useless ones, one answer."""

from anabranch.strategies.best_of_n.strategy import BestOfN

__all__ = ["BestOfN"]
