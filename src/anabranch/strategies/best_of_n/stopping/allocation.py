"""Adaptive best-of-k: one global budget of traces over many questions, each trace where it gains most (arXiv 2410.04707).

What a further trace gains for a question is a curve, estimated beforehand: by a probe on the question, or from earlier
traces of questions like it. Where no curve rises, taking the greatest gain again and again gives the greatest sum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import pairwise

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping.base import check_least

_ROUNDING = 1e-12


def allocate(gains: Sequence[Sequence[float]], budget: int, *, least: int = 0) -> tuple[int, ...]:
    """How many traces each question gets: the greatest sum of gains within the budget.

    Args:
        gains: for each question, what its first, second, ... trace gains; as many as it may have at most. Raises
            InvalidParameter where a curve rises: the greedy choice would not be the best.
        budget: traces for all questions together. It is not used up where nothing is gained.
        least: traces for each question, whatever they gain (1: a question must be answered). Raises InvalidParameter
            where the budget or a curve is too short for it.

    Equal gains go to the question that comes first.
    """
    _check(gains, budget, least)
    given = [least] * len(gains)
    heap = [(-curve[least], index) for index, curve in enumerate(gains) if len(curve) > least]
    heapq.heapify(heap)
    for _ in range(budget - least * len(gains)):
        if not heap or heap[0][0] >= 0.0:
            break
        _, index = heap[0]
        given[index] += 1
        curve = gains[index]
        if given[index] < len(curve):
            heapq.heapreplace(heap, (-curve[given[index]], index))
        else:
            heapq.heappop(heap)
    return tuple(given)


def success_gains(chance: float, most: int) -> tuple[float, ...]:
    """What each of `most` traces adds to the probability that one of them is right, where each is with this chance.

    With a verifier that knows a right answer: p (1-p)^(k-1) for trace k. Raises InvalidParameter on a chance outside 0 .. 1.
    """
    if not 0.0 <= chance <= 1.0:
        raise InvalidParameter("chance", f"must be within 0 to 1, got {chance}")
    return tuple(chance * (1.0 - chance) ** earlier for earlier in range(most))


def best_score_gains(scores: Sequence[float]) -> tuple[float, ...]:
    """What each further trace adds to the expected best score, from scores of traces that are at hand.

    The expected greatest of k drawn without replacement: the i-th smallest of n is it in C(i-1, k-1) of C(n, k) draws. The
    first trace gains its mean score. A score below 0 counts as loss, so shift scores such that 0 is no answer.
    """
    ranked, n = sorted(scores), len(scores)
    best = [0.0] + [
        sum(score * math.comb(place, k - 1) for place, score in enumerate(ranked)) / math.comb(n, k)
        for k in range(1, n + 1)
    ]
    return tuple(after - before for before, after in pairwise(best))


def _check(gains: Sequence[Sequence[float]], budget: int, least: int) -> None:
    check_least("least", least, 0)
    check_least("budget", budget, least * len(gains))
    for index, curve in enumerate(gains):
        check_least(f"gains[{index}]'s length", len(curve), least)
        if any(later > earlier + _ROUNDING for earlier, later in pairwise(curve)):
            raise InvalidParameter(f"gains[{index}]", "rises; smooth it, for instance with a running minimum")
