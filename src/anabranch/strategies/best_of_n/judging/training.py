"""Trains a judge on pairs of partial traces of one problem each, and says how good it is on problems it has not seen.

Pairs with another answer are few: they are oversampled until both kinds are as many, and pairs that are hard to tell weigh
more, after the focal loss that DeepPrune trains with: a pair rated p for its own kind has weight (1 - p)^gamma. Needs
scikit-learn (`anabranch[judge]`); what comes out does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.orchestrator.errors import InvalidParameter, MissingExtra
from anabranch.strategies.best_of_n.judging.auroc import Area, Rated, bootstrap
from anabranch.strategies.best_of_n.judging.features import features
from anabranch.strategies.best_of_n.judging.judge import Judge
from anabranch.strategies.best_of_n.stopping.base import check_least

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePair:
    """Two partial traces of one problem, and whether their whole traces gave the same answer."""

    problem: str
    first: str
    second: str
    same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a judge is trained.

    Attributes:
        gamma: of the focal weights; 0: all pairs weigh alike. Raises InvalidParameter below 0.
        rounds: times that the weights are set anew. Raises InvalidParameter below 1.
        penalty: strength of the ridge penalty on scaled features, against the sum over all pairs. Raises InvalidParameter below 0.001.
        folds: parts that the problems are split into, each held out once. Raises InvalidParameter below 2.
        seed: of the oversampling and the split.
    """

    gamma: float = 2.0
    rounds: int = 3
    penalty: float = 1000.0
    folds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("gamma", 0), ("rounds", 1), ("penalty", 0.001), ("folds", 2)):
            check_least(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A judge, trained on all pairs, and how good judges made the same way are on problems held out from them.

    Attributes:
        auroc: over all pairs, whatever their problem.
        within: the mean over problems of the area within each, over those that have pairs of both kinds.
        rated: each pair as it was rated while its problem was held out.
    """

    judge: Judge
    auroc: Area
    within: Area
    rated: tuple[Rated, ...]


def train(
    pairs: Sequence[TracePair], recipe: Recipe | None = None, *, about: Mapping[str, Any] | None = None
) -> Trained:
    """Train a judge.

    Args:
        pairs: of several problems, of both kinds. Raises InvalidParameter where there are fewer problems than folds, or
            where pairs of one kind come from fewer than two problems: then nothing can be held out.
        recipe: how; the default one without it.
        about: kept in the judge.

    Raises MissingExtra without scikit-learn.
    """
    recipe = recipe or Recipe()
    fold_of = _folds(pairs, recipe)
    seen = np.array([features(pair.first, pair.second) for pair in pairs])
    same = np.array([pair.same for pair in pairs])
    place = np.array([fold_of[pair.problem] for pair in pairs])
    ratings = np.zeros(len(pairs))
    for fold in sorted(set(fold_of.values())):
        weights, intercept = _fit(seen[place != fold], same[place != fold], recipe)
        ratings[place == fold] = seen[place == fold] @ weights + intercept
    rated = tuple(
        Rated(problem=pair.problem, rating=float(rating), same=pair.same)
        for pair, rating in zip(pairs, ratings, strict=True)
    )
    weights, intercept = _fit(seen, same, recipe)
    judge = Judge(weights=tuple(map(float, weights)), intercept=intercept, about=about or {})
    return Trained(judge=judge, auroc=bootstrap(rated), within=bootstrap(rated, each_problem=True), rated=rated)


def _folds(pairs: Sequence[TracePair], recipe: Recipe) -> dict[str, int]:
    """The fold of each problem: those that have pairs with other answers are dealt out first, so that each fold has some."""
    for kind in (True, False):
        having = {pair.problem for pair in pairs if pair.same is kind}
        if len(having) < 2:
            raise InvalidParameter("pairs", f"of same={kind} come from {len(having)} problems, 2 are needed")
    disputed = {pair.problem for pair in pairs if not pair.same}
    problems = sorted({pair.problem for pair in pairs})
    if len(problems) < recipe.folds:
        raise InvalidParameter("folds", f"there are {len(problems)} problems for {recipe.folds} folds")
    dealt = np.random.default_rng(recipe.seed).permutation(len(problems))
    ordered = sorted((problems[at] for at in dealt), key=lambda problem: problem not in disputed)
    return {problem: at % recipe.folds for at, problem in enumerate(ordered)}


def _fit(seen: Floats, same: NDArray[np.bool_], recipe: Recipe) -> tuple[Floats, float]:
    """Weights, for features that are not scaled, and the intercept."""
    chosen = _balanced(same, recipe.seed)
    mean, spread = seen.mean(axis=0), seen.std(axis=0)
    spread[spread < 1e-9] = 1.0
    scaled, target = ((seen - mean) / spread)[chosen], same[chosen]
    model = _regression(1.0 / recipe.penalty)
    weight = np.ones(len(chosen))
    for _ in range(recipe.rounds):
        model.fit(scaled, target, sample_weight=weight * (len(weight) / weight.sum()))
        own = model.predict_proba(scaled)[np.arange(len(target)), target.astype(int)]
        weight = (1.0 - own) ** recipe.gamma + 1e-6
    coefficients: Floats = model.coef_[0] / spread
    return coefficients, float(model.intercept_[0] - coefficients @ mean)


def _balanced(same: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Places of all pairs, and of those of the rarer kind again until both kinds are as many."""
    kinds = sorted((np.flatnonzero(same), np.flatnonzero(~same)), key=len)
    more = np.random.default_rng(seed).choice(kinds[0], size=len(kinds[1]) - len(kinds[0]))
    return np.concatenate((*kinds, more))


def _regression(strength: float) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtra("training a judge", "judge") from error
    return LogisticRegression(C=strength, max_iter=1000)
