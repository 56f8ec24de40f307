"""TaskGraph: what it refuses, what it says is ready, and that every node ends."""

from __future__ import annotations

import random

import pytest

from anabranch.orchestrator.errors import GraphError
from anabranch.orchestrator.taskgraph import GraphLimits, Node, TaskGraph


def node(id: str, *needs: str, weight: float = 1.0) -> Node[str]:
    return Node(id=id, needs=needs, payload=f"do {id}", weight=weight)


def asked(graph: TaskGraph[str]) -> list[str]:
    return [ready.id for ready in graph.ask()]


@pytest.mark.parametrize(
    ("nodes", "culprit", "problem"),
    [
        ([node("a"), node("a")], "a", "twice"),
        ([node("a", "ghost")], "a", "no node of the plan"),
        ([node("a", "b"), node("b")], "a", "comes after"),
        ([node("a", "a")], "a", "cycle"),
        ([node("a", "c"), node("b", "a"), node("c", "b")], "[abc]", "cycle"),
    ],
)
def test_bad_plans_are_refused_with_the_node_named(nodes: list[Node[str]], culprit: str, problem: str) -> None:
    """Duplicates, unknown and forward references and cycles are told apart, and the node is named."""
    with pytest.raises(GraphError, match=f"node '{culprit}'.*{problem}") as caught:
        TaskGraph.of(nodes)
    assert caught.value.node


@pytest.mark.parametrize(
    ("limits", "nodes", "culprit"),
    [
        (GraphLimits(nodes=2), [node("a"), node("b", "a"), node("c", "b")], "c"),
        (GraphLimits(fan_out=2), [node("a"), node("b"), node("c")], "c"),
        (GraphLimits(fan_out=2), [node("r"), *(node(str(i), "r") for i in range(3))], "2"),
        (GraphLimits(depth=2), [node("a"), node("b", "a"), node("c", "b")], "c"),
    ],
)
def test_over_large_plans_are_refused(limits: GraphLimits, nodes: list[Node[str]], culprit: str) -> None:
    """Too many nodes, too wide a fork and too long a chain are refused at the node that goes too far."""
    with pytest.raises(GraphError) as caught:
        TaskGraph.of(nodes, limits)
    assert caught.value.node == culprit


def test_a_refused_node_leaves_the_graph_as_it_was() -> None:
    """Adding fails without a trace, so that a streamed plan can go on without the bad node."""
    graph: TaskGraph[str] = TaskGraph()
    graph.add(node("a"))
    with pytest.raises(GraphError):
        graph.add(node("b", "ghost"))
    graph.add(node("c", "a"))
    graph.seal()
    assert list(graph.nodes) == ["a", "c"]


def test_a_node_is_ready_when_its_own_parents_are_done() -> None:
    """No barrier: a child of a quick parent does not wait for the slow one's level."""
    graph = TaskGraph.of([node("quick"), node("slow"), node("child", "quick"), node("both", "quick", "slow")])
    assert set(asked(graph)) == {"quick", "slow"}
    assert graph.tell("quick") == ["quick", "child"]
    assert asked(graph) == ["child"]
    graph.tell("slow")
    assert asked(graph) == ["both"]


def test_the_longest_remaining_chain_goes_first() -> None:
    """Ready nodes come in the order of the weight that hangs on them."""
    graph = TaskGraph.of([node("leaf"), node("long"), node("heavy", weight=9), node("next", "long", weight=3)])
    assert asked(graph) == ["heavy", "long", "leaf"]


def test_a_failure_skips_all_that_depends_on_it_with_the_reason() -> None:
    """Dependants end at once with the reason; others go on; the graph comes to its end."""
    graph = TaskGraph.of([node("a"), node("b", "a"), node("c", "b"), node("free")])
    graph.ask()
    assert set(graph.tell("a", error="boom")) == {"a", "b", "c"}
    assert (graph.state("a"), graph.state("c"), graph.state("free")) == ("failed", "skipped", "running")
    assert "boom" in graph.reason("c")
    graph.tell("free")
    assert graph.done


def test_late_and_repeated_results_are_ignored() -> None:
    """Telling twice, or of a node that does not run, changes nothing."""
    graph = TaskGraph.of([node("a"), node("b", "a")])
    assert graph.tell("a") == []
    graph.ask()
    graph.tell("a")
    assert graph.tell("a", error="late") == []
    assert graph.state("a") == "done"


def test_a_node_added_behind_a_failed_one_is_skipped() -> None:
    """A plan that is still being written cannot wait for what has failed already."""
    graph: TaskGraph[str] = TaskGraph()
    graph.add(node("a"))
    graph.ask()
    graph.tell("a", error="boom")
    graph.add(node("b", "a"))
    graph.seal()
    assert graph.state("b") == "skipped"
    assert graph.done


def test_a_growing_graph_is_done_only_when_sealed() -> None:
    """An empty or finished graph may still get nodes until it is sealed; then it takes none."""
    graph: TaskGraph[str] = TaskGraph()
    assert not graph.done
    graph.seal()
    assert graph.done
    with pytest.raises(GraphError, match="sealed"):
        graph.add(node("late"))


def test_unknown_nodes_are_refused() -> None:
    """Telling of a node that is not there is an error."""
    with pytest.raises(GraphError, match="no such node"):
        TaskGraph.of([node("a")]).tell("ghost")


@pytest.mark.parametrize("seed", range(20))
def test_every_random_graph_ends_with_each_node_in_an_end_state(seed: int) -> None:
    """Whatever fails, in whatever order, nothing hangs, and no node runs before its parents are done."""
    chance = random.Random(seed)
    nodes = [
        node(str(i), *{str(chance.randrange(i)) for _ in range(chance.randrange(4))} if i else ())
        for i in range(60)
    ]
    graph = TaskGraph.of(nodes)
    running: list[str] = []
    while not graph.done:
        for ready in graph.ask():
            assert all(graph.state(need) == "done" for need in ready.needs)
            running.append(ready.id)
        running.sort(key=lambda _: chance.random())
        graph.tell(running.pop(), error="boom" if chance.random() < 0.1 else None)
    assert {graph.state(n.id) for n in nodes} <= {"done", "failed", "skipped"}


def test_a_growing_graph_knows_its_chains() -> None:
    """A node that comes later makes those that it needs more urgent."""
    graph: TaskGraph[str] = TaskGraph()
    for each in (node("a"), node("b"), node("c", "b", weight=4), node("d", "a", "c")):
        graph.add(each)
    assert {id: graph.remaining(id) for id in "abcd"} == {"a": 2.0, "b": 6.0, "c": 5.0, "d": 1.0}
