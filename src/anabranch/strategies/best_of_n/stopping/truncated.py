"""The normal distribution cut to 0 .. 1: what scores are taken to follow (OptScale, arXiv 2506.22376).

The fit is of greatest likelihood, within bounds that keep it sane for a handful of scores. The likelihood depends on the
scores through their mean and variance alone, and is concave in (mu / sigma^2, -1 / (2 sigma^2)); the bounds are convex
there. So for a given sigma there is one best mu, along those there is one best sigma, and two nested golden sections
find both, with no derivative and no start value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Self

_CENTRES = (-1.0, 2.0)
_SPREADS = (0.01, 1.0)
_GOLDEN = (math.sqrt(5) - 1) / 2
_CUTS = 32
"""Of a golden section: each leaves 0.618 of the interval, all of them 2e-7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedNormal:
    """A normal distribution given that the value is within 0 .. 1.

    Attributes:
        mu, sigma: of the normal distribution before it is cut.
    """

    mu: float
    sigma: float

    @classmethod
    def fit(cls, scores: Sequence[float]) -> Self:
        """The most likely one, with mu within -1 .. 2 and sigma within 0.01 .. 1.

        Args:
            scores: at least one, each within 0 .. 1.
        """
        mean, variance = fmean(scores), pvariance(scores)

        def best_mu(sigma: float) -> float:
            return _least(lambda mu: _loss(mu, sigma, mean, variance), *_CENTRES)

        log_sigma = _least(
            lambda log: _loss(best_mu(math.exp(log)), math.exp(log), mean, variance),
            math.log(_SPREADS[0]),
            math.log(_SPREADS[1]),
        )
        return cls(mu=best_mu(math.exp(log_sigma)), sigma=math.exp(log_sigma))

    def log_below(self, score: float) -> float:
        """Logarithm of the probability of less than that."""
        return _log_mass(self.mu, self.sigma, score) - _log_mass(self.mu, self.sigma, 1.0)

    def draws(self, target: float, risk: float) -> float:
        """Draws of which the greatest is below `target` with a probability of at most `risk`, both within 0 .. 1.

        The distribution function of the greatest of N is F^N, so N = ln risk / ln F(target), rounded up; infinity where
        the target is out of reach.
        """
        log_below = self.log_below(target)
        if log_below >= 0.0:
            return math.inf
        return max(1, math.ceil(math.log(risk) / log_below))


def _loss(mu: float, sigma: float, mean: float, variance: float) -> float:
    """The negative mean log-likelihood, less a constant."""
    off = ((mean - mu) ** 2 + variance) / (2 * sigma**2)
    return math.log(sigma) + _log_mass(mu, sigma, 1.0) + off


def _log_mass(mu: float, sigma: float, upto: float) -> float:
    """Logarithm of what the uncut distribution has within 0 .. upto, also far out in a tail."""
    near, far = (0.0 - mu) / sigma, (upto - mu) / sigma
    if far < 0:
        near, far = -far, -near
    if near > 30:  # erfc is 0 in double precision above 27 / sqrt(2) or so
        return -(near**2) / 2 - math.log(near * math.sqrt(2 * math.pi))
    mass = (math.erfc(near / math.sqrt(2)) - math.erfc(far / math.sqrt(2))) / 2
    return math.log(mass) if mass > 0 else -math.inf


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least, by golden section."""
    inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_inner, at_outer = function(inner), function(outer)
    for _ in range(_CUTS):
        if at_inner <= at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - _GOLDEN * (high - low)
            at_inner = function(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + _GOLDEN * (high - low)
            at_outer = function(outer)
    return (low + high) / 2
