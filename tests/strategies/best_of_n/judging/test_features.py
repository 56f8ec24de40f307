"""The features of two partial traces: symmetric, within 0 to 1, and by hand on small texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.strategies.best_of_n.judging import FEATURES, features
from anabranch.strategies.best_of_n.judging.features import plain, structure

TEXTS = st.text(st.sampled_from("ab 12,.=\\()[]{}$\n#-|xX"), max_size=60) | st.sampled_from(
    ["We add: \\(2 + 3 = 5\\).\n\nSo \\boxed{5}.", "Then $x = \\frac{1}{2}$.\n\n\\[x = 7\\]\n", "1,260.5 = 2"]
)


def named(first: str, second: str) -> dict[str, float]:
    """The features by name."""
    return dict(zip(FEATURES, features(first, second), strict=True))


@given(first=TEXTS, second=TEXTS)
def test_the_order_of_the_two_makes_no_difference(first: str, second: str) -> None:
    """And each is a number within 0 to 1."""
    vector = features(first, second)
    assert vector.shape == (len(FEATURES),)
    assert vector.dtype == np.float64
    assert (vector == features(second, first)).all()
    assert ((vector >= 0) & (vector <= 1)).all()


def test_numbers_results_and_lengths_by_hand() -> None:
    """2 3 5 5 7 35 against 2 3 5 5 8 40: three of seven different ones are shared, four of eight in all."""
    one = "First 2 + 3 = 5.\n\nThen 5 * 7 = 35"
    two = "First 2 + 3 = 5.\n\nThen 5 * 8 = 40"
    found = named(one, two)
    assert found["numbers shared"] == pytest.approx(3 / 7)
    assert found["numbers contained"] == pytest.approx(3 / 5)
    assert found["numbers alike in count"] == pytest.approx(4 / 8)
    assert found["results shared"] == pytest.approx(1 / 3)
    assert found["results contained"] == pytest.approx(1 / 2)
    assert found["last result the same"] == 0.0
    assert named(one, one)["last result the same"] == 1.0
    assert found["length alike"] == found["steps alike"] == found["structure alike"] == 1.0
    assert named("a\n\nb\n\nc", "a")["steps alike"] == pytest.approx(1 / 3)


def test_words_and_beginnings_by_hand() -> None:
    """Case does not count, letters alone are no words."""
    found = named("We add the numbers x", "we add the areas")
    assert found["words shared"] == pytest.approx(3 / 5)
    assert found["word pairs shared"] == pytest.approx(2 / 4)
    assert found["beginning shared"] == pytest.approx(3 / 4)


def test_formulas_are_compared_without_spaces_and_sizes() -> None:
    """In whatever delimiters they stand; thousands with and without a comma are one number."""
    found = named(r"\(\dfrac{1}{2} + x\)", r"$\frac{1}{2}+x$")
    assert found["expressions shared"] == found["expressions contained"] == 1.0
    assert named("1,260", "1260")["numbers shared"] == 1.0
    assert plain(r"\left( x \right),") == "(x)"


def test_boxed_candidates_agree_differ_or_are_not_there() -> None:
    """Braces within are read."""
    boxed = r"\boxed{\frac{1}{2}}"
    pairs = {
        name: (found["boxed the same"], found["boxed differ"])
        for name, found in {
            "same": named(boxed, "So " + boxed),
            "differ": named(boxed, r"\boxed{\frac{1}{3}}"),
            "one": named(boxed, "no"),
        }.items()
    }
    assert pairs == {"same": (1.0, 0.0), "differ": (0.0, 1.0), "one": (0.0, 0.0)}


def test_outlines_are_told_apart() -> None:
    """Items against formulas."""
    assert named("- one\n- two", "\\[x\\]\n\\[y\\]")["structure alike"] == 0.0
    assert named("# a\n- one", "# b\n* two")["structure alike"] == 1.0
    assert structure("pfp", "fip") == structure("fip", "pfp")  # the standard library's matcher says 1/3 and 2/3
