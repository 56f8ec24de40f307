"""The judge: will two partial traces give the same answer? A logistic regression on `features`, in plain numpy.

It is read from JSON, so neither the package that trained it nor pickles are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Self

import numpy as np

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.judging.features import FEATURES, features
from anabranch.strategies.logits import sigmoid


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A trained judge.

    Attributes:
        weights: for each of `FEATURES`, as they are, not scaled. Raises InvalidParameter on another number of them.
        intercept: log-odds where all features are 0.
        part: share of a trace that it was trained on, for those who ask when to compare.
        about: what it was trained on, by whom it was published, under which licence, and how good it is.
    """

    weights: tuple[float, ...]
    intercept: float
    part: tuple[float, float] = (0.3, 0.5)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise InvalidParameter("weights", f"there are {len(FEATURES)} features, got {len(self.weights)}")

    def __call__(self, first: str, second: str) -> float:
        """Probability that the two give the same answer; the order makes no difference.

        With the training's oversampling, as if half of all pairs did: it is for comparing with a threshold.
        """
        return sigmoid(float(features(first, second) @ np.asarray(self.weights)) + self.intercept)

    def to_json(self) -> str:
        """As a JSON object, a weight a line."""
        content = {
            "about": dict(self.about),
            "part": list(self.part),
            "intercept": self.intercept,
            "weights": dict(zip(FEATURES, self.weights, strict=True)),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises InvalidParameter where it is no judge, or one for other features."""
        try:
            content = json.loads(text)
            weights: dict[str, float] = content["weights"]
            unknown = set(weights) ^ set(FEATURES)
            low, high = content["part"]
            intercept = float(content["intercept"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter("judge", f"is no judge's JSON: {error!r}") from error
        if unknown:
            raise InvalidParameter("judge", f"is for other features: {', '.join(sorted(unknown))}")
        return cls(
            weights=tuple(float(weights[name]) for name in FEATURES),
            intercept=intercept,
            part=(low, high),
            about=content.get("about", {}),
        )


@cache
def shipped() -> Judge:
    """The one in the package, trained on a hundred problems of MATH; `about` says how good it is."""
    file = resources.files("anabranch.strategies.best_of_n.judging") / "judge.json"
    return Judge.from_json(file.read_text(encoding="utf-8"))
