"""Posterior probabilities against integration by other means."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from anabranch.strategies.best_of_n.stopping.posterior import beats, leads

COUNTS = st.integers(min_value=0, max_value=60)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0, 0, Fraction(1, 2)),
        (1, 0, Fraction(3, 4)),
        (4, 0, Fraction(31, 32)),
        (2, 1, Fraction(11, 16)),
        (1, 2, Fraction(5, 16)),
    ],
)
def test_small_votes_are_as_worked_out_by_hand(first: int, second: int, expected: Fraction) -> None:
    """For instance 2 against 1: (C(4,0) + C(4,1) + C(4,2)) / 2^4 = 11/16."""
    assert beats(first, second) == float(expected)


@pytest.mark.parametrize(("first", "second"), [(4, 0), (9, 4), (12, 11), (3, 8), (40, 25)])
def test_it_is_the_integral_of_the_paper(first: int, second: int) -> None:
    """The share of x^a (1-x)^b above a half, by adaptive quadrature."""

    def density(x: float) -> float:
        return float(x**first * (1 - x) ** second)

    upper, whole = (integrate.quad(density, low, 1, epsabs=0)[0] for low in (0.5, 0.0))
    assert beats(first, second) == pytest.approx(upper / whole, rel=1e-9)


@given(COUNTS, COUNTS)
def test_of_two_answers_exactly_one_is_more_probable(first: int, second: int) -> None:
    """Both probabilities add up to one, and many more votes than anybody casts are no difficulty."""
    assert beats(first, second) + beats(second, first) == pytest.approx(1.0, abs=1e-12)
    assert beats(5000, 4000) == pytest.approx(1.0)


@given(COUNTS, COUNTS)
def test_a_vote_for_an_answer_makes_it_more_probable(first: int, second: int) -> None:
    """Strictly so, in both places, until doubles can't tell it from 1."""
    assert beats(first + 1, second) >= beats(first, second) >= beats(first, second + 1)
    assert beats(first + 1, second + 60) > beats(first, second + 60)


@given(COUNTS, COUNTS)
def test_with_two_answers_the_dirichlet_posterior_is_the_beta_posterior(first: int, second: int) -> None:
    """The integral over gamma variables gives what the coin gives."""
    assert leads((first, second)) == pytest.approx(beats(first, second), abs=1e-11)


@given(st.lists(COUNTS, min_size=1, max_size=5))
def test_exactly_one_answer_is_the_most_probable(votes: list[int]) -> None:
    """Their probabilities add up to one."""
    chances = [leads((own, *votes[:index], *votes[index + 1 :])) for index, own in enumerate(votes)]
    assert math.fsum(chances) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("votes", [(5, 2, 1), (3, 3, 0), (12, 6, 6, 2), (1, 1, 1, 1, 1)])
def test_several_answers_are_as_integrated_over_shares(votes: tuple[int, ...]) -> None:
    """By adaptive quadrature over the gamma variables, with scipy's distribution functions."""
    first, *others = votes

    def integrand(x: float) -> float:
        below = math.prod(float(stats.gamma.cdf(x, count + 1)) for count in others)
        return float(stats.gamma.pdf(x, first + 1)) * below

    assert leads(votes) == pytest.approx(integrate.quad(integrand, 0, 100, limit=200)[0], abs=1e-7)


def test_three_answers_are_as_integrated_over_the_triangle() -> None:
    """Straight from the definition: the density p^5 q^2 r^1 where p is the greatest of three shares."""

    def density(q: float, p: float) -> float:
        return p**5 * q**2 * max(0.0, 1 - p - q)

    def lower(p: float) -> float:
        return max(0.0, 1 - 2 * p)  # so that the third share is no greater than p

    leading, _ = integrate.dblquad(density, 1 / 3, 1, lower, lambda p: min(p, 1 - p))
    whole, _ = integrate.dblquad(density, 0, 1, 0, lambda p: 1 - p)
    assert leads((5, 2, 1)) == pytest.approx(leading / whole, abs=1e-7)
