"""The branches of a run as a tree to read from top to bottom.

A branch stands under the generation that it depends on, and a join under the last fork that its parents have in
common. An only child is its parent's continuation and stands at the same level, so that a long chain stays narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anabranch.cli.timeline import BranchView

FORK, LAST, PASS, BLANK, CHAIN, JOIN = "├─ ", "└─ ", "│  ", "   ", "↳ ", "⇉ "
DEEPEST = 12
"""Levels that are drawn; what is deeper stands at this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A branch with the lines that are drawn before its name."""

    branch: BranchView
    prefix: str


def tree_rows(branches: Mapping[int, BranchView]) -> list[TreeRow]:
    """All branches, each below its parent, siblings in the order in which they were asked for."""
    parents: dict[int, int | None] = {}
    children: dict[int | None, list[int]] = {None: []}
    for id in sorted(branches):
        parent = parents[id] = _tree_parent(branches[id], parents)
        children.setdefault(parent, []).append(id)
    return [TreeRow(branch=branches[id], prefix=prefix) for id, prefix in _walk(children, branches)]


def _tree_parent(branch: BranchView, parents: Mapping[int, int | None]) -> int | None:
    """Its parent, or the nearest ancestor that all of its parents share."""
    known = [parent for parent in branch.parents if parent in parents]
    if not known:
        return None
    paths = [list(_path(parent, parents)) for parent in known]
    common = set(paths[0]).intersection(*paths[1:])
    return next((id for id in paths[0] if id in common), None)


def _path(id: int | None, parents: Mapping[int, int | None]) -> Iterator[int]:
    while id is not None:
        yield id
        id = parents[id]


def _walk(
    children: Mapping[int | None, list[int]], branches: Mapping[int, BranchView]
) -> Iterator[tuple[int, str]]:
    # a stack, because a chain of a thousand steps is deeper than Python's recursion
    stack = [(id, "", "") for id in reversed(children[None])]
    while stack:
        id, prefix, below = stack.pop()
        join = JOIN if len(branches[id].parents) > 1 else ""
        yield id, prefix + join
        own = children.get(id, [])
        if len(own) == 1:
            stack.append((own[0], below + CHAIN, below))
            continue
        pass_on = (below + PASS, below + BLANK) if len(below) < DEEPEST * len(PASS) else (below, below)
        for index, child in reversed(list(enumerate(own))):
            last = index == len(own) - 1
            stack.append((child, below + (LAST if last else FORK), pass_on[last]))
