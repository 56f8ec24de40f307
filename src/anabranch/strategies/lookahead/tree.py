"""The tree of Lookahead Reasoning as a pure state machine: told what came, it says what is to be done next.

A node is a place in the answer. The root is the place up to which the answer is certain. A child of a node is a step
that a draft model wrote there; beside it stands the step that the target itself writes at the same place. A verifier
says of a child whether it is what the target would say. So:

- the first child of the root that is accepted becomes the root, and its siblings are dropped;
- when none can be accepted any more, the target's own step counts, and all that stood on the drafts is dropped.

Drafting never waits for the target: a node gets children as soon as its own step is there, as long as it is not deeper
below the root than `depth`. When the target's step is there before a draft of the same place is, the draft is useless:
going on from the target's step at once is never slower.

Source: Lookahead Reasoning (arXiv 2506.19830), section 3. With `compare` off a verifier looks at the draft alone, and
the target writes only what was rejected: SpecReason (arXiv 2504.07891), RSD (arXiv 2501.19324).

Invariant: what is committed are steps that the verifier accepted and steps of the target, each place once, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from anabranch.strategies.lookahead.steps import Step

Author = Literal["draft", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Have a draft model write a step after this node's parent."""

    node: int
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Have the target write its step after this node."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Have this node's draft judged; `own` is the target's step at the same place, None where it is not compared."""

    node: int
    draft: Step
    own: Step | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """This step belongs to the answer. `node` is the new root; its branch is the step's."""

    node: int
    step: Step
    by: Author


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Stop whatever was asked for at this node; its drafted step is not used.

    `rejected`: because of itself, by a verdict or because it is no whole step; else because of what stood before or beside it.
    """

    node: int
    rejected: bool = False


Move = Draft | Target | Judge | Commit | Drop


@dataclass(slots=True, eq=False)
class _Node:
    number: int
    place: int
    parent: _Node | None = None
    draft: Step | None = None
    drafting: bool = False
    fanned: bool = False
    target_asked: bool = False
    target: Step | None = None
    judged: bool = False
    accepted: bool | None = None
    children: list[_Node] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether steps may follow: the step that led here is whole, and not the last one."""
        return self.parent is None or (
            self.draft is not None and not self.draft.final and self.accepted is not False
        )


class Tree:
    """Where the answer stands, and what has been tried beyond.

    Args:
        depth: steps that drafting may be ahead of the root; may be changed at any time. 0: no drafts.
        width: drafts for each place.
        compare: drafts are compared with the target's own step, which is asked for at every node at once.
        in_step: the synchronous form: all drafts first, then the target at all of them, then the verdicts.
    """

    def __init__(self, *, depth: int, width: int = 1, compare: bool = True, in_step: bool = False) -> None:
        self.depth, self._width, self._compare, self._in_step = depth, width, compare, in_step
        self._root = _Node(0, 0)
        self._nodes = {0: self._root}
        self._count = 0
        self._moves: list[Move] = []
        self._last = ""
        self.ended = False
        """The last step of the answer has been committed."""

    @property
    def root(self) -> int:
        """The node up to which the answer is certain."""
        return self._root.number

    def knows(self, node: int) -> bool:
        """Whether a node still counts; what comes of others is too late."""
        return node in self._nodes

    def moves(self) -> list[Move]:
        """What is to be done next, in this order. Each move is given once."""
        self._advance()
        moves, self._moves = self._moves, []
        return moves

    # Telling

    def drafted(self, node: int, step: Step | None) -> None:
        """A draft is there; None: there will be none. Half a step, an empty one and a repeated one are rejected."""
        if (found := self._nodes.get(node)) is None:
            return
        found.drafting, found.draft = False, step
        if step is None:
            self._set_aside(found)
        elif not step.whole or step.empty or step.same_as(self._before(found)):
            self._reject(found)

    def written(self, node: int, step: Step) -> None:
        """The target's own step after a node is there."""
        if (found := self._nodes.get(node)) is not None:
            found.target = step

    def judged(self, node: int, *, accepted: bool) -> None:
        """The verdict on a node's draft."""
        if (found := self._nodes.get(node)) is None:
            return
        if accepted:
            found.accepted = True
            for sibling in [other for other in _parent(found).children if other is not found]:
                self._set_aside(sibling)
        else:
            self._reject(found)

    # What follows

    def _advance(self) -> None:
        while True:
            while not self.ended and self._settle():
                pass
            if self.ended:
                return
            for node in list(self._walk(self._root)):
                if node.open:
                    self._add_drafts(node)
            for node in list(self._walk(self._root)):
                self._ask_target(node)
            if not self._judge_all():
                return

    def _settle(self) -> bool:
        """Move the root on, if it can be; whether it was."""
        root = self._root
        winner = next((child for child in root.children if child.accepted), None)
        if winner is not None and winner.draft is not None:
            self._move_root(winner, winner.draft, "draft")
            return True
        if root.target is None or any(child.draft is not None for child in root.children):
            return False
        # What is still being drafted at this place comes too late.
        self._forget_below(root)
        self._count += 1
        behind = _Node(self._count, root.place + 1)
        self._nodes[behind.number] = behind
        self._move_root(behind, root.target, "target")
        return True

    def _move_root(self, node: _Node, step: Step, by: Author) -> None:
        for child in self._root.children:
            if child is not node:
                self._forget(child)
        del self._nodes[self._root.number]
        node.parent, self._root, self._last = None, node, step.text
        self._moves.append(Commit(node=node.number, step=step, by=by))
        if step.final:
            self.ended = True
            self._forget_below(node)

    def _add_drafts(self, node: _Node) -> None:
        """Drafts of the next step, once for each node."""
        if node.fanned or node.target is not None or node.place - self._root.place >= self.depth:
            return
        if self._in_step and any(each.target_asked for each in self._nodes.values()):
            return  # the next round begins when this one is settled
        node.fanned = True
        for _ in range(self._width):
            self._count += 1
            child = _Node(self._count, node.place + 1, parent=node, drafting=True)
            node.children.append(child)
            self._nodes[child.number] = child
            self._moves.append(Draft(node=child.number, parent=node.number))

    def _ask_target(self, node: _Node) -> None:
        """The target's own step: at every node where it is compared, else only where no draft was any good."""
        if not node.open or node.target_asked:
            return
        if self._compare:
            wanted = not (self._in_step and any(each.drafting for each in self._nodes.values()))
        else:
            wanted = node is self._root and not node.children and (node.fanned or self.depth == 0)
        if wanted:
            node.target_asked = True
            self._moves.append(Target(node=node.number))

    def _judge_all(self) -> bool:
        """Have judged what can be; whether some needed no judge, so that the root may move on."""
        decided = False
        for node in list(self._walk(self._root)):
            for child in list(node.children) if self.knows(node.number) else ():
                if child.draft is None or child.judged or (self._compare and node.target is None):
                    continue
                child.judged = True
                if node.target is not None and node.target.final != child.draft.final:
                    self._reject(child)  # the one has come to an end, the other goes on
                    decided = True
                else:
                    self._moves.append(Judge(node=child.number, draft=child.draft, own=node.target))
        return decided

    def _reject(self, node: _Node) -> None:
        node.accepted = False
        self._set_aside(node)

    def _set_aside(self, node: _Node) -> None:
        _parent(node).children.remove(node)
        self._forget(node)

    def _forget_below(self, node: _Node) -> None:
        for child in list(node.children):
            self._forget(child)
        node.children = []

    def _forget(self, node: _Node) -> None:
        for each in list(self._walk(node)):
            del self._nodes[each.number]
            self._moves.append(Drop(node=each.number, rejected=each.accepted is False))

    def _walk(self, node: _Node) -> Iterator[_Node]:
        """A node and all below it, parents first."""
        waiting = [node]
        while waiting:
            each = waiting.pop(0)
            yield each
            waiting.extend(each.children)

    def _before(self, node: _Node) -> str:
        """The text of the step before a node's."""
        parent = _parent(node)
        return self._last if parent is self._root or parent.draft is None else parent.draft.text


def _parent(node: _Node) -> _Node:
    assert node.parent is not None
    return node.parent
