"""The tree: each branch below what it depends on, joins below the fork that they close."""

from __future__ import annotations

import pytest

from anabranch.cli.timeline import BranchView, Timeline
from anabranch.cli.tree import tree_rows


def tree(parents: dict[int, tuple[int, ...]]) -> list[str]:
    branches = {id: BranchView(id=id, parents=of, label=str(id)) for id, of in parents.items()}
    return [row.prefix + row.branch.label for row in tree_rows(branches)]


def test_a_fork() -> None:
    """Siblings stand below their parent, in the order in which they were asked for."""
    assert tree({1: (), 2: (1,), 3: (1,), 4: (2,)}) == ["1", "├─ 2", "│  ↳ 4", "└─ 3"]


def test_a_chain_stays_narrow() -> None:
    """An only child stands at its parent's level, so that a thousand steps need no more room than two."""
    chain = tree({id: (id - 1,) if id > 1 else () for id in range(1, 1001)})
    assert chain[0] == "1"
    assert set(chain[1:]) == {f"↳ {id}" for id in range(2, 1001)}


def test_a_join_stands_below_the_fork_that_it_closes() -> None:
    """A branch with several parents comes after all of them, below their nearest common ancestor."""
    assert tree({1: (), 2: (1,), 3: (1,), 4: (2, 3)}) == ["1", "├─ 2", "├─ 3", "└─ ⇉ 4"]


def test_a_join_of_roots_is_a_root() -> None:
    """Branches without a common ancestor join at the top."""
    assert tree({1: (), 2: (), 3: (1, 2)}) == ["1", "2", "⇉ 3"]


def test_a_parent_that_nobody_knows_is_no_parent() -> None:
    """A branch whose parent's events were lost is a root."""
    assert tree({5: (4,)}) == ["5"]


@pytest.mark.parametrize("parents", [{1: (1,)}, {1: (2,), 2: (1,)}])
def test_nonsense_does_not_hang(parents: dict[int, tuple[int, ...]]) -> None:
    """Circles, which no engine writes, are shown once each."""
    assert len(tree(parents)) == len(parents)


def test_all_branches_of_the_example_are_there(example: Timeline) -> None:
    """Every branch has exactly one row."""
    assert sorted(row.branch.id for row in tree_rows(example.branches)) == sorted(example.branches)


def test_deep_forks_do_not_grow_without_end() -> None:
    """Beyond a dozen levels the tree does not move further to the right."""
    parents: dict[int, tuple[int, ...]] = {1: ()}
    for level in range(60):
        parents[2 * level + 2] = parents[2 * level + 3] = (2 * level + 1,)
    assert max(len(row) for row in tree(parents)) < 60
