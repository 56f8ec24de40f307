"""The tree as a pure machine: whatever the order in which things come, each place is committed once, in order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from anabranch.orchestrator.branch import Branch
from anabranch.strategies.lookahead.steps import Step
from anabranch.strategies.lookahead.tree import Commit, Draft, Drop, Judge, Move, Target, Tree

QUESTION = Branch.of("question")
LENGTH = 7


def step(text: str, *, final: bool = False, whole: bool = True) -> Step:
    return Step(text=text, branch=QUESTION, final=final, whole=whole)


def kinds(moves: list[Move]) -> list[str]:
    return [type(move).__name__ for move in moves]


def test_at_first_the_draft_and_the_target_begin_together() -> None:
    """Drafting does not wait for the target."""
    assert Tree(depth=4).moves() == [Draft(node=1, parent=0), Target(node=0)]


def test_drafting_goes_on_before_anything_is_judged() -> None:
    """A drafted step is continued, and the target works behind it, at once; as deep as allowed."""
    tree = Tree(depth=2)
    tree.moves()
    tree.drafted(1, step("a"))
    assert tree.moves() == [Draft(node=2, parent=1), Target(node=1)]
    tree.drafted(2, step("b"))
    assert tree.moves() == [Target(node=2)]


def test_an_accepted_draft_becomes_the_root_and_what_stood_on_it_stays() -> None:
    """Its own target call goes on; the step is committed as the draft's."""
    tree = Tree(depth=2)
    tree.moves()
    tree.drafted(1, step("a"))
    tree.moves()
    tree.written(0, step("A"))
    assert tree.moves() == [Judge(node=1, draft=step("a"), own=step("A"))]
    tree.judged(1, accepted=True)
    assert tree.moves() == [Commit(node=1, step=step("a"), by="draft")]
    assert tree.root == 1


def test_where_the_draft_is_rejected_the_targets_step_counts() -> None:
    """All that stood on the draft is dropped at once, and drafting begins anew behind the target's step."""
    tree = Tree(depth=2)
    tree.moves()
    tree.drafted(1, step("a"))
    tree.moves()
    tree.written(0, step("A"))
    tree.moves()
    tree.judged(1, accepted=False)
    assert tree.moves() == [
        Drop(node=1, rejected=True),
        Drop(node=2),
        Commit(node=3, step=step("A"), by="target"),
        Draft(node=4, parent=3),
        Target(node=3),
    ]


def test_a_draft_that_is_later_than_the_target_is_useless() -> None:
    """The target's step is committed without waiting for it."""
    tree = Tree(depth=2)
    tree.moves()
    tree.written(0, step("A"))
    assert kinds(tree.moves()) == ["Drop", "Commit", "Draft", "Target"]


@pytest.mark.parametrize("bad", [step("half", whole=False), step("  "), None])
def test_what_is_no_step_is_never_judged(bad: Step | None) -> None:
    """Half a step, an empty one, and none at all: the target's own counts, and no draft is tried again there."""
    tree = Tree(depth=2)
    tree.moves()
    tree.drafted(1, bad)
    assert tree.moves() == [Drop(node=1, rejected=bad is not None)]
    tree.written(0, step("A"))
    assert kinds(tree.moves()) == ["Commit", "Draft", "Target"]


def test_a_draft_that_repeats_the_step_before_is_rejected() -> None:
    """A model that loops is not followed."""
    tree = Tree(depth=3)
    tree.moves()
    tree.drafted(1, step("The same."))
    tree.moves()
    tree.drafted(2, step("the  same."))
    assert tree.moves() == [Drop(node=2, rejected=True)]


def test_one_that_ends_and_one_that_goes_on_are_not_the_same() -> None:
    """No judge is asked."""
    tree = Tree(depth=2)
    tree.moves()
    tree.drafted(1, step("done", final=True))
    tree.moves()
    tree.written(0, step("done"))
    assert kinds(tree.moves())[:2] == ["Drop", "Commit"]


def test_the_first_of_several_drafts_that_is_accepted_wins() -> None:
    """Its siblings are dropped at once, with what stood on them."""
    tree = Tree(depth=1, width=3)
    assert kinds(tree.moves()) == ["Draft"] * 3 + ["Target"]
    for node, text in ((1, "a"), (2, "b"), (3, "c")):
        tree.drafted(node, step(text))
    tree.moves()
    tree.written(0, step("A"))
    assert kinds(tree.moves()) == ["Judge"] * 3
    tree.judged(2, accepted=True)
    assert tree.moves()[:3] == [Drop(node=1), Drop(node=3), Commit(node=2, step=step("b"), by="draft")]


def test_without_comparison_the_target_writes_only_what_was_rejected() -> None:
    """A draft is judged as soon as it is there (SpecReason)."""
    tree = Tree(depth=1, compare=False)
    assert kinds(tree.moves()) == ["Draft"]
    tree.drafted(1, step("a"))
    assert tree.moves() == [Judge(node=1, draft=step("a"), own=None)]
    tree.judged(1, accepted=False)
    assert tree.moves() == [Drop(node=1, rejected=True), Target(node=0)]
    tree.written(0, step("A"))
    assert kinds(tree.moves()) == ["Commit", "Draft"]


def test_in_step_the_target_waits_for_all_drafts() -> None:
    """The synchronous form: all drafts, then the target at all of them."""
    tree = Tree(depth=2, in_step=True)
    assert kinds(tree.moves()) == ["Draft"]
    tree.drafted(1, step("a"))
    assert kinds(tree.moves()) == ["Draft"]
    tree.drafted(2, step("b"))
    assert kinds(tree.moves()) == ["Target", "Target", "Target"]


def test_without_depth_the_target_goes_step_by_step() -> None:
    """Depth 0 drafts nothing, in both forms."""
    for compare in (True, False):
        tree = Tree(depth=0, compare=compare)
        assert kinds(tree.moves()) == ["Target"]


@dataclass
class Schedule:
    """A driver that does what the tree asks in random order, and keeps account."""

    tree: Tree
    random: random.Random
    texts: dict[int, list[str]] = field(default_factory=lambda: {0: []})
    pending: list[Draft | Target | Judge] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    committed: list[str] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)

    def take(self) -> None:
        for move in self.tree.moves():
            if isinstance(move, Commit):
                self.texts[move.node] = [*self.committed, move.step.text]
                self.committed.append(move.step.text)
            elif isinstance(move, Drop):
                assert move.node not in self.dropped
                self.dropped.add(move.node)
                self.pending = [each for each in self.pending if each.node != move.node]
            else:
                assert move.node not in self.dropped
                self.asked.append((type(move).__name__, move.node))
                self.pending.append(move)

    def one(self) -> None:
        """Something that was asked for comes."""
        move = self.pending.pop(self.random.randrange(len(self.pending)))
        if isinstance(move, Draft):
            prefix = self.texts[move.parent]
            drafted = self._draft(len(prefix))
            if drafted is not None:
                self.texts[move.node] = [*prefix, drafted.text]
            self.tree.drafted(move.node, drafted)
        elif isinstance(move, Target):
            place = len(self.texts[move.node])
            self.tree.written(move.node, step(f"step {place}", final=place == LENGTH - 1))
        else:
            self.tree.judged(move.node, accepted=move.draft.text.startswith("step"))

    def _draft(self, place: int) -> Step | None:
        kind = self.random.random()
        if kind < 0.5:
            return step(f"step {place}", final=place == LENGTH - 1)
        if kind < 0.8:
            return step(f"guess {self.random.random()}", final=kind < 0.55)
        return step("half", whole=False) if kind < 0.95 else None


@pytest.mark.parametrize(("compare", "in_step"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("width", [1, 3])
def test_any_order_of_events_gives_the_same_answer(compare: bool, in_step: bool, width: int) -> None:
    """Over random schedules: no step is lost or doubled, nothing is asked twice, and at the end nothing is under way."""
    for seed in range(300):
        tree = Tree(depth=seed % 5, width=width, compare=compare, in_step=in_step)
        schedule = Schedule(tree, random.Random(seed))
        schedule.take()
        while not tree.ended:
            assert schedule.pending, f"seed {seed}: the tree waits for nothing"
            schedule.one()
            schedule.take()
        assert schedule.committed == [f"step {place}" for place in range(LENGTH)], f"seed {seed}"
        assert len(schedule.asked) == len(set(schedule.asked)), f"seed {seed}"
        assert not schedule.pending, f"seed {seed}: left under way"
