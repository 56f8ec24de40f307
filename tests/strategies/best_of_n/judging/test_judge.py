"""The judge: probabilities by hand, JSON there and back, and the one that is shipped."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.judging import FEATURES, Judge, shipped
from anabranch.strategies.logits import sigmoid

ONLY_NUMBERS = Judge(
    weights=tuple(4.0 if name == "numbers shared" else 0.0 for name in FEATURES), intercept=-2.0
)


def test_a_probability_by_hand() -> None:
    """Half of the numbers are shared: log-odds of 0; all: 2; none: -2."""
    assert ONLY_NUMBERS("1 2", "1") == pytest.approx(0.5)
    assert ONLY_NUMBERS("1 2", "2 1") == pytest.approx(1 / (1 + math.exp(-2)))
    assert ONLY_NUMBERS("1 2", "3") == pytest.approx(1 / (1 + math.exp(2)))


@pytest.mark.parametrize("logit", [-1000.0, -1.0, 0.0, 1.0, 1000.0])
def test_no_logit_is_too_large(logit: float) -> None:
    """The two sides sum up to 1."""
    assert sigmoid(logit) + sigmoid(-logit) == pytest.approx(1.0)


def test_json_there_and_back() -> None:
    """Nothing is lost, and what it is about is kept."""
    judge = Judge(weights=ONLY_NUMBERS.weights, intercept=-1 / 3, part=(0.2, 0.4), about={"licence": "MIT"})
    assert Judge.from_json(judge.to_json()) == judge


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weights": {"age": 1}, "part": [0, 1], "intercept": 0}', '{"weights": 3}']
)
def test_what_is_no_judge_is_refused(text: str) -> None:
    """Also one that was trained for other features."""
    with pytest.raises(InvalidParameter):
        Judge.from_json(text)
    with pytest.raises(InvalidParameter, match="weights"):
        Judge(weights=(1.0,), intercept=0.0)


def test_the_shipped_judge_says_where_it_comes_from() -> None:
    """Source, licence, and how good it is on problems held out."""
    about = shipped().about
    assert "Qwen2.5-Math" in about["data"]
    assert about["licence"] == "MIT"
    value, low, high = about["AUROC, problems held out"]
    assert 0.5 < low < value < high < 1.0


def test_the_shipped_judge_tells_what_is_plain_to_see() -> None:
    """The same beginning twice, against two that have nothing in common."""
    one = "We add the legs: \\(3 + 4 = 7\\).\n\nThen the area is \\(3 \\cdot 4 / 2 = 6\\)."
    two = "Let $x$ be Ann's age.\n- She was born in 1990.\n- Bob was born 20 years later."
    assert shipped()(one, one) > 0.9
    assert shipped()(one, two) < 0.1


def test_the_shipped_judge_needs_no_scikit_learn() -> None:
    """Neither to be read nor to judge."""
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from anabranch.strategies.best_of_n.judging import shipped, train\n"
        "print(shipped()('1 + 1 = 2', '1 + 1 = 2'))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 0.0 < float(printed) < 1.0


def test_the_judge_is_json_that_people_can_read() -> None:
    """A weight for each feature, by name."""
    assert json.loads(ONLY_NUMBERS.to_json())["weights"]["numbers shared"] == 4.0
