"""OptScale: the fit against scipy's, and the number of traces against the distribution of the greatest score."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.stopping import OptScale
from anabranch.strategies.best_of_n.stopping.truncated import TruncatedNormal
from voting import scored

SCORES = st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=3, max_size=12)
BOUNDS = ((-1.0, 2.0), (0.01, 1.0))


def cut(mu: float, sigma: float) -> stats.rv_continuous:
    """scipy's, with its parameters."""
    return stats.truncnorm((0 - mu) / sigma, (1 - mu) / sigma, mu, sigma)


def likelihood(mu: float, sigma: float, scores: list[float]) -> float:
    return float(cut(mu, sigma).logpdf(scores).mean())


@pytest.mark.parametrize(("mu", "sigma"), [(0.7, 0.15), (0.95, 0.2), (0.2, 0.05), (0.5, 0.4)])
def test_the_fit_finds_what_the_scores_were_drawn_from(mu: float, sigma: float) -> None:
    """From 4,000 draws, to within a tenth of sigma, or a fifth where most of the normal distribution is cut away."""
    scores = [float(x) for x in cut(mu, sigma).rvs(size=4000, random_state=1)]
    fit = TruncatedNormal.fit(scores)
    assert fit.mu == pytest.approx(mu, abs=sigma / 5)
    assert fit.sigma == pytest.approx(sigma, rel=0.2)


@settings(max_examples=20)
@given(SCORES)
def test_no_other_parameters_are_more_likely(scores: list[float]) -> None:
    """A general optimiser, started from three places, finds none within the bounds."""
    fit = TruncatedNormal.fit(scores)
    found = max(
        -optimize.minimize(
            lambda at: -likelihood(at[0], at[1], scores), start, bounds=BOUNDS, method="Nelder-Mead"
        ).fun
        for start in ((0.5, 0.1), (1.5, 0.5), (-0.5, 0.5))
    )
    assert likelihood(fit.mu, fit.sigma, scores) >= found - 1e-4 * max(1.0, abs(found))


@pytest.mark.parametrize(("mu", "sigma", "target"), [(0.5, 0.2, 0.9), (0.9, 0.1, 0.95), (1.3, 0.3, 0.97)])
def test_the_number_of_draws_is_the_smallest_whose_greatest_reaches_the_target(
    mu: float, sigma: float, target: float
) -> None:
    """Searched for with scipy's quantiles: the 5 % quantile of the greatest of N is that of one at 0.05^(1/N)."""
    smallest = next(n for n in range(1, 10_000) if cut(mu, sigma).ppf(0.05 ** (1 / n)) >= target)
    assert TruncatedNormal(mu=mu, sigma=sigma).draws(target, 0.05) == smallest


@pytest.mark.parametrize(("mu", "sigma"), [(0.5, 0.2), (-1.0, 0.3), (2.0, 0.2), (0.99, 0.01)])
def test_the_distribution_function_is_exact_far_out_in_the_tails(mu: float, sigma: float) -> None:
    """Against scipy's logarithm of it."""
    for score in (0.3, 0.9, 0.999):
        expected = float(cut(mu, sigma).logcdf(score))
        assert TruncatedNormal(mu=mu, sigma=sigma).log_below(score) == pytest.approx(
            expected, rel=1e-6, abs=1e-12
        )


def test_the_greatest_of_so_many_draws_misses_the_target_as_seldom_as_promised() -> None:
    """Simulated, 4,000 times."""
    known = TruncatedNormal(mu=0.6, sigma=0.2)
    n = int(known.draws(0.9, 0.05))
    rng = random.Random(3)

    def draw() -> float:
        return next(x for x in iter(lambda: rng.gauss(0.6, 0.2), None) if 0 <= x <= 1)

    missed = sum(max(draw() for _ in range(n)) < 0.9 for _ in range(4000)) / 4000
    assert missed == pytest.approx(0.05, abs=0.012)


def test_a_first_lot_comes_before_the_fit() -> None:
    """Five scores; a trace that has none is asked for again."""
    assert OptScale().wanted([]) == 5
    assert OptScale().wanted(scored(0.9, None, 0.8)) == 6
    assert OptScale(most=4).wanted([]) == 4


def test_good_scores_are_enough_and_hopeless_ones_go_to_the_end() -> None:
    """Where every score is above the target one trace is enough; far below it even the most are too few."""
    assert OptScale().wanted(scored(0.99, 0.98, 0.99, 0.97, 0.985)) == 5
    assert OptScale().wanted(scored(*[0.5] * 5)) == 64
    assert 5 < OptScale().wanted(scored(0.7, 0.8, 0.9, 0.95, 0.75)) < 64


def test_a_trace_without_a_score_is_no_draw() -> None:
    """However many there are, as many scores are wanted as without them."""
    scores = (0.7, 0.8, 0.9, 0.95, 0.75)
    assert OptScale().wanted(scored(*scores, None, None, None)) == OptScale().wanted(scored(*scores)) + 3


@settings(max_examples=60)
@given(SCORES, st.floats(0.3, 0.98), st.floats(0.001, 0.015))
def test_a_higher_target_or_less_risk_never_takes_fewer(
    scores: list[float], target: float, more: float
) -> None:
    """The wanted number grows with the target, and falls with the percentile."""
    ended = scored(*scores)
    base = OptScale(target=target, first=3).wanted(ended)
    assert OptScale(target=target + more, first=3).wanted(ended) >= base
    assert OptScale(target=target, percentile=0.01, first=3).wanted(ended) >= base


def test_scores_that_are_no_probabilities_are_refused() -> None:
    """A reward of 3.5 has to be mapped to 0 .. 1 first."""
    with pytest.raises(InvalidParameter, match="score"):
        OptScale().wanted(scored(3.5, 0.2, 0.1, 0.1, 0.1))


def test_bad_parameters_are_named() -> None:
    """A target of 1 is never reached."""
    with pytest.raises(InvalidParameter, match="target"):
        OptScale(target=1.0)
    with pytest.raises(InvalidParameter, match="first"):
        OptScale(first=1)
    assert TruncatedNormal(mu=0.0, sigma=0.01).draws(0.9999, 0.05) == math.inf
