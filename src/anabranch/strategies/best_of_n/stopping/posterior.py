"""How sure is it that the answer with most votes is also the one that the model gives most often?

Each answer has an unknown probability; all are equally likely beforehand (a uniform prior), so that after c votes an
answer counts as c + 1. Both functions are deterministic: no random numbers, no tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=4096)
def beats(first: int, second: int) -> float:
    """Probability that of two answers with so many votes the first is the more probable one.

    The integral of x^a (1-x)^b from 1/2 to 1 over that from 0 to 1 (Adaptive-Consistency, arXiv 2305.11860), which for
    whole a and b is exactly the probability of at most a heads in a + b + 1 throws of a fair coin.
    """
    throws = first + second + 1
    ways = of_these = 1
    for heads in range(first):
        of_these = of_these * (throws - heads) // (heads + 1)
        ways += of_these
    return ways / (1 << throws)


@lru_cache(maxsize=4096)
def leads(votes: tuple[int, ...]) -> float:
    """Probability that the first of several answers is the most probable one, under a Dirichlet posterior.

    Shares that follow a Dirichlet distribution are independent gamma variables over their sum, so the greatest share
    has the greatest variable. That is one integral: the density of the first times the distribution functions of the
    others. It is taken over ln x, where it vanishes at both ends, so that the trapezoidal rule errs by less than 1e-11.

    Args:
        votes: for each answer; an answer that is alone leads for certain.
    """
    first, *others = votes
    shape = first + 1
    step = 0.25 / math.sqrt(max(votes) + 1)
    low = math.log(shape) - 1 - 40 / shape
    high = math.log(shape + 10 * math.sqrt(shape) + 40)
    points = (math.exp(low + step * place) for place in range(math.ceil((high - low) / step) + 1))
    return step * math.fsum(x * _integrand(first, others, x) for x in points)


def _integrand(first: int, others: Sequence[int], x: float) -> float:
    """Density times distribution functions at x: gamma variables of whole shape wait for events of a Poisson process."""
    events = [math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(max(first, *others, 0) + 1)]
    return events[first] * math.prod(1.0 - math.fsum(events[: count + 1]) for count in others)
