"""Training: the area under the curve by counting pairs, the split by problems, and a judge that learns."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import combinations, product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter, MissingExtra
from anabranch.strategies.best_of_n.judging import (
    FEATURES,
    Judge,
    Rated,
    Recipe,
    TracePair,
    auroc,
    bootstrap,
    train,
    within,
)
from anabranch.strategies.best_of_n.judging.training import _balanced, _folds

RATED = st.lists(
    st.builds(Rated, problem=st.sampled_from("pqr"), rating=st.integers(0, 4).map(float), same=st.booleans()),
    max_size=25,
)


def counted(rated: list[Rated]) -> float | None:
    """How often a pair of the same answer is rated above another one; ties are half."""
    kinds = ([each.rating for each in rated if each.same is kind] for kind in (True, False))
    compared = [(one > other) + (one == other) / 2 for one, other in product(*kinds)]
    return fmean(compared) if compared else None


@given(rated=RATED)
def test_the_area_is_what_counting_gives(rated: list[Rated]) -> None:
    """Over all, and within each problem; none where one kind is missing."""
    assert auroc(rated) == pytest.approx(counted(rated) if counted(rated) is not None else np.nan, nan_ok=True)
    own = [counted([each for each in rated if each.problem == problem]) for problem in "pqr"]
    known = [area for area in own if area is not None]
    assert within(rated) == pytest.approx(fmean(known) if known else np.nan, nan_ok=True)


def test_the_interval_is_for_problems_not_for_pairs() -> None:
    """A hundred copies of each pair make it no narrower; a certain area has no width."""
    rng = random.Random(1)
    few = [
        Rated(problem=str(k), rating=rng.random() + 0.5 * same, same=same)
        for k in range(20)
        for same in (True, False)
    ]
    area, again = bootstrap(few, resamples=300), bootstrap(few * 100, resamples=300)
    assert area.low < area.value < area.high
    assert (again.low, again.high) == pytest.approx((area.low, area.high), abs=0.05)
    sure = [Rated(problem=str(k), rating=float(same), same=same) for k in range(9) for same in (True, False)]
    assert (bootstrap(sure, resamples=50).low, bootstrap(sure, resamples=50).value) == (1.0, 1.0)


def made_up(problems: int = 20, seed: int = 0) -> list[TracePair]:
    """Pairs of four traces a problem; those with the same answer have much the same numbers."""
    rng = random.Random(seed)
    pairs = []
    for problem in range(problems):
        traces = []
        for _ in range(4):
            answer = rng.choice([0, 0, 1])
            numbers = [answer * 6 + rng.randrange(12) for _ in range(6)]
            traces.append((answer, f"Problem {problem}: " + " + ".join(map(str, numbers))))
        pairs += [
            TracePair(problem=f"p{problem}", first=one, second=other, same=mine == theirs)
            for (mine, one), (theirs, other) in combinations(traces, 2)
        ]
    return pairs


def test_a_judge_learns_what_there_is_to_learn() -> None:
    """On problems that it hasn't seen; the judge says the same after JSON."""
    pairs = made_up()
    trained = train(pairs, Recipe(folds=5, penalty=10.0), about={"licence": "none"})
    assert trained.auroc.value > 0.7
    assert trained.within.value > 0.7
    assert trained.auroc.low < trained.auroc.value <= trained.auroc.high
    assert len(trained.rated) == len(pairs)
    again = Judge.from_json(trained.judge.to_json())
    assert again.about == {"licence": "none"}
    means = {
        kind: fmean(again(pair.first, pair.second) for pair in pairs if pair.same is kind)
        for kind in (True, False)
    }
    assert means[True] > 0.5 > means[False]


def blind(seed: int) -> list[TracePair]:
    """Pairs whose labels are drawn without a look at them."""
    rng = random.Random(seed)
    return [replace(pair, same=rng.random() < 0.6) for pair in made_up(10, seed)]


def test_where_there_is_nothing_to_learn_the_area_is_that_of_chance() -> None:
    """Labels that are drawn blindly, few pairs, no penalty: on the pairs that it has seen, a judge would find 0.64."""
    recipe = Recipe(folds=5, penalty=0.001)
    areas = [train(blind(seed), recipe).auroc.value for seed in range(6)]
    assert fmean(areas) == pytest.approx(0.5, abs=0.06)


def test_each_fold_has_problems_with_both_kinds_as_far_as_there_are_so_many() -> None:
    """Five of them among twenty are dealt out to five folds; a problem is in one fold as a whole."""
    pairs = [replace(pair, same=pair.same or int(pair.problem[1:]) % 4 > 0) for pair in made_up()]
    disputed = {pair.problem for pair in pairs if not pair.same}
    assert 3 <= len(disputed) <= 5
    for seed in range(5):
        fold_of = _folds(pairs, Recipe(folds=5, seed=seed))
        assert set(fold_of) == {pair.problem for pair in pairs}
        assert len({fold_of[problem] for problem in disputed}) == len(disputed)


def test_the_rarer_kind_is_drawn_again_until_both_are_as_many() -> None:
    """Each pair is there once at least."""
    same = np.array([True] * 20 + [False] * 3)
    places = _balanced(same, seed=0)
    assert set(places) == set(range(23))
    assert len(places) == 40
    assert same[places].sum() == 20


def test_the_same_pairs_give_the_same_judge() -> None:
    """Seeds are fixed."""
    recipe = Recipe(folds=2)
    assert train(made_up(6), recipe) == train(made_up(6), recipe)


def test_pairs_from_which_nothing_can_be_held_out_are_refused() -> None:
    """Of one kind, of one problem, of fewer problems than folds."""
    pairs = made_up(8)
    for some in ([pair for pair in pairs if pair.same], [p for p in pairs if p.problem == "p0"], []):
        with pytest.raises(InvalidParameter, match="pairs"):
            train(some, Recipe(folds=2))
    with pytest.raises(InvalidParameter, match="folds"):
        train(pairs, Recipe(folds=9))


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtra) as raised:
        train(made_up(6), Recipe(folds=2))
    assert raised.value.extra == "judge"


@pytest.mark.parametrize(("field", "value"), [("gamma", -1), ("rounds", 0), ("penalty", 0), ("folds", 1)])
def test_bad_parameters_are_named(field: str, value: int) -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter) as raised:
        Recipe(**{field: value})
    assert raised.value.field == field


def test_the_vector_has_a_name_for_each_place() -> None:
    """No name is there twice."""
    assert len(set(FEATURES)) == len(FEATURES)
