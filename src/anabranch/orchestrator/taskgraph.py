"""TaskGraph: sub-tasks and what they need from each other. Pure: ask it what is ready, tell it what came of it.

No clock, no tasks, no model: `orchestrator/execute.py` drives it. States of a node:

    state    ask          tell(ok)   tell(error)   a parent failed or was skipped
    waiting  -            -          -             skipped
    ready    running      -          -             -
    running  -            done       failed        -
    done     -            (ignored)  (ignored)     -
    failed   -            (ignored)  (ignored)     -
    skipped  -            (ignored)  (ignored)     -

A waiting node becomes ready when its last parent is done. Late and repeated results are ignored, so that whoever
drives the graph may be told twice. Every node ends: nothing waits for what can no longer come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from anabranch.orchestrator.errors import GraphError
from anabranch.orchestrator.events import NodeState

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Generic[T]):
    """A sub-task.

    Attributes:
        needs: ids of the nodes whose results it needs.
        payload: what it is about; the graph does not look at it.
        weight: its expected length (tokens, seconds: any one unit), for scheduling.
    """

    id: str
    payload: T
    needs: tuple[str, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """What is too large to be a sensible plan.

    Attributes:
        nodes: nodes in all.
        fan_out: nodes that need one and the same node; also nodes that need none.
        depth: nodes on the longest chain.
    """

    nodes: int = 10_000
    fan_out: int = 1_000
    depth: int = 1_000


class TaskGraph(Generic[T]):
    """Sub-tasks and what they need from each other. It may grow while it is executed, until it is sealed."""

    def __init__(self, limits: GraphLimits | None = None) -> None:
        import networkx as nx

        self.limits = limits or GraphLimits()
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.sealed = False
        self._nodes: dict[str, Node[T]] = {}
        self._states: dict[str, NodeState] = {}
        self._reasons: dict[str, str] = {}
        self._unmet: dict[str, int] = {}
        self._depths: dict[str, int] = {}
        self._ready: list[str] = []
        self._open = 0
        self._roots = 0
        self._remaining: dict[str, float] = {}

    @classmethod
    def of(cls, nodes: Iterable[Node[T]], limits: GraphLimits | None = None) -> TaskGraph[T]:
        """A whole, sealed graph; each node may need only nodes that stand before it.

        Raises:
            GraphError: a cycle, an unknown or forward reference, a duplicate id, too many nodes, too wide or too
                deep; it names the node.
        """
        plan = list(nodes)
        _check_references(plan)
        graph = cls(limits)
        for node in plan:
            graph.add(node)
        graph.seal()
        return graph

    def add(self, node: Node[T]) -> None:
        """Add a node whose needs are there already. Raises GraphError, naming the node, and adds nothing."""
        self._check(node)
        needs = tuple(dict.fromkeys(node.needs))
        self._nodes[node.id] = node
        self.graph.add_node(node.id)
        self.graph.add_edges_from((need, node.id) for need in needs)
        self._depths[node.id] = 1 + max((self._depths[need] for need in needs), default=0)
        self._roots += not needs
        self._open += 1
        self._lengthen(node.id)
        self._unmet[node.id] = sum(self._states[need] != "done" for need in needs)
        self._states[node.id] = "waiting"
        if dead := next((need for need in needs if self._states[need] in ("failed", "skipped")), None):
            self._skip(node.id, dead)
        elif not self._unmet[node.id]:
            self._make_ready(node.id)

    def seal(self) -> None:
        """Say that no further node will come."""
        self.sealed = True

    def ask(self) -> list[Node[T]]:
        """The nodes that are ready, those with the longest remaining chain first; they count as running now."""
        ready, self._ready = self._ready, []
        for node_id in ready:
            self._states[node_id] = "running"
        ready.sort(key=self.remaining, reverse=True)
        return [self._nodes[node_id] for node_id in ready]

    def tell(self, node_id: str, *, error: str | None = None) -> list[str]:
        """Say what came of a running node. Returns the nodes whose state changed by it, itself first."""
        if self._state_of(node_id) != "running":
            return []
        self._open -= 1
        if error is not None:
            self._states[node_id], self._reasons[node_id] = "failed", error
            return [node_id, *self._skip_dependants(node_id)]
        self._states[node_id] = "done"
        changed = [node_id]
        for child in self.graph.successors(node_id):
            self._unmet[child] -= 1
            if not self._unmet[child] and self._states[child] == "waiting":
                self._make_ready(child)
                changed.append(child)
        return changed

    @property
    def done(self) -> bool:
        """Whether every node has ended and none will come."""
        return self.sealed and self._open == 0

    @property
    def nodes(self) -> Mapping[str, Node[T]]:
        """The nodes by id, in the order in which they were added."""
        return self._nodes

    def state(self, node_id: str) -> NodeState:
        """The state of a node. Raises GraphError when there is no such node."""
        return self._state_of(node_id)

    def reason(self, node_id: str) -> str:
        """Why a node failed or was skipped; empty otherwise."""
        return self._reasons.get(node_id, "")

    def remaining(self, node_id: str) -> float:
        """Weight of the heaviest chain from this node to the end, itself included: its scheduling priority."""
        return self._remaining[node_id]

    def _lengthen(self, node_id: str) -> None:
        """A new node makes the chains that lead to it longer."""
        changed = [(node_id, self._nodes[node_id].weight)]
        while changed:
            node, length = changed.pop()
            if length > self._remaining.get(node, -1.0):
                self._remaining[node] = length
                changed += [(need, length + self._nodes[need].weight) for need in self.graph.predecessors(node)]

    def _state_of(self, node_id: str) -> NodeState:
        if node_id not in self._states:
            raise GraphError(node_id, "there is no such node")
        return self._states[node_id]

    def _check(self, node: Node[T]) -> None:
        limits = self.limits
        if self.sealed:
            raise GraphError(node.id, "the graph is sealed")
        if node.id in self._nodes:
            raise GraphError(node.id, "the id is used twice")
        if len(self._nodes) >= limits.nodes:
            raise GraphError(node.id, f"more than {limits.nodes} nodes")
        if not node.needs and self._roots >= limits.fan_out:
            raise GraphError(node.id, f"more than {limits.fan_out} nodes that need none")
        for need in node.needs:
            if need == node.id:
                raise GraphError(node.id, "needs itself")
            if need not in self._nodes:
                raise GraphError(node.id, f"needs {need!r}, which no node before it defines")
            if self.graph.out_degree(need) >= limits.fan_out:
                raise GraphError(node.id, f"more than {limits.fan_out} nodes need {need!r}")
            if self._depths[need] >= limits.depth:
                raise GraphError(node.id, f"stands on a chain of more than {limits.depth} nodes")

    def _make_ready(self, node_id: str) -> None:
        self._states[node_id] = "ready"
        self._ready.append(node_id)

    def _skip(self, node_id: str, culprit: str) -> None:
        self._states[node_id] = "skipped"
        self._reasons[node_id] = f"needs {culprit!r}, which failed: {self._reasons[culprit]}"
        self._open -= 1

    def _skip_dependants(self, culprit: str) -> list[str]:
        import networkx as nx

        skipped = [node for node in nx.descendants(self.graph, culprit) if self._states[node] == "waiting"]
        for node in skipped:
            self._skip(node, culprit)
        return skipped


def _check_references(plan: list[Node[T]]) -> None:
    """Tell a cycle from a forward and from an unknown reference."""
    import networkx as nx

    known = {node.id for node in plan}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for node in plan:
        for need in node.needs:
            if need not in known:
                raise GraphError(node.id, f"needs {need!r}, which is no node of the plan")
            graph.add_edge(need, node.id)
    if not nx.is_directed_acyclic_graph(graph):
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
        raise GraphError(cycle[0], f"is part of a cycle: {' -> '.join([*cycle, cycle[0]])}")
    seen: set[str] = set()
    for node in plan:
        if forward := next((need for need in node.needs if need not in seen), None):
            raise GraphError(node.id, f"needs {forward!r}, which comes after it")
        seen.add(node.id)
