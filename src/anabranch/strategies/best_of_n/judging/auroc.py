"""The area under the ROC curve: how often a pair with the same answer is rated above one with another. 0.5 is chance."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A pair that a judge has rated: of which problem, how high, and whether the answers are the same."""

    problem: str
    rating: float
    same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """An estimate with its 95 % interval (bootstrap over problems)."""

    value: float
    low: float
    high: float


def auroc(rated: Sequence[Rated]) -> float:
    """Over all pairs, of whatever problem; equal ratings count half. NaN where one kind is missing."""
    same = np.sort([each.rating for each in rated if each.same])
    other = np.array([each.rating for each in rated if not each.same])
    if not same.size or not other.size:
        return float("nan")
    below = np.searchsorted(same, other, side="left"), np.searchsorted(same, other, side="right")
    above = 2 * same.size - below[0] - below[1]
    return float(above.mean() / (2 * same.size))


def within(rated: Sequence[Rated]) -> float:
    """The mean of the areas of the problems that have pairs of both kinds: what a clustering of one problem sees."""
    areas = [auroc(own) for own in by_problem(rated).values()]
    known = [area for area in areas if not math.isnan(area)]
    return fmean(known) if known else float("nan")


def by_problem(rated: Sequence[Rated]) -> dict[str, list[Rated]]:
    """The pairs of each problem."""
    found: defaultdict[str, list[Rated]] = defaultdict(list)
    for each in rated:
        found[each.problem].append(each)
    return dict(found)


def bootstrap(rated: Sequence[Rated], *, each_problem: bool = False, resamples: int = 1000) -> Area:
    """`auroc`, or `within` where `each_problem`, with the interval for other problems of the same kind.

    Problems are drawn, not pairs, since those of one problem are alike. Draws without pairs of both kinds are left out.
    """
    rng, measure = random.Random(0), within if each_problem else auroc
    problems = list(by_problem(rated).values())
    draws = (measure(_drawn(problems, rng)) for _ in range(resamples))
    drawn = sorted(area for area in draws if not math.isnan(area))
    if not drawn:
        return Area(value=measure(rated), low=float("nan"), high=float("nan"))
    low, high = (drawn[round(at * (len(drawn) - 1))] for at in (0.025, 0.975))
    return Area(value=measure(rated), low=low, high=high)


def _drawn(problems: Sequence[Sequence[Rated]], rng: random.Random) -> list[Rated]:
    """As many problems, drawn with replacement; one that is drawn twice counts as two."""
    chosen = rng.choices(problems, k=len(problems))
    return [replace(pair, problem=str(place)) for place, own in enumerate(chosen) for pair in own]
