"""Accounting: what a run used, derived from the record of its generations.

The records form the run's computation graph, since each names the generations that its prompt stood on. Work, span,
waste and prefix reuse follow from it, for every strategy, without the strategy's help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.orchestrator.answer import RunUsage
from anabranch.orchestrator.branch import GenerationId

if TYPE_CHECKING:
    import networkx as nx


@dataclass(slots=True, kw_only=True)
class GenerationRecord:
    """What is kept of a generation after its end: figures, no text. Times are seconds since the run began.

    Attributes:
        span: completion tokens on the chain of dependencies that has most of them, this generation's included.
        read: somebody awaited or iterated it; what nobody read is wasted.
        rejected: the strategy said that its output is not used, or it was built on nothing else.
        discarded: its tokens are counted as wasted.
        wasted: completion tokens that were not used.
        finish_reason: why it ended; empty while it runs, `error` when it failed.
        estimated: the server gave no usage; the completion tokens are a count of stream pieces.
    """

    id: GenerationId
    parents: tuple[GenerationId, ...]
    label: str
    role: str
    depth: int
    queued_at: float
    started_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    model: str = ""
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    span: int = 0
    read: bool = False
    rejected: bool = False
    discarded: bool = False
    wasted: int = 0
    finish_reason: str = ""
    estimated: bool = False


def usage_of(records: Iterable[GenerationRecord]) -> RunUsage:
    """The tokens of a run."""
    prompt = cached = work = span = wasted = branches = 0
    for record in records:
        prompt += record.prompt
        cached += min(record.cached, record.prompt)
        work += record.completion
        span = max(span, record.span)
        wasted += record.wasted
        branches += record.started_at is not None
    return RunUsage(
        prompt=prompt, cached=cached, completion=work, work=work, span=span, wasted=wasted, branches=branches
    )


def span_of(records: Iterable[GenerationRecord], *, role: str) -> int:
    """The span of one role's tokens alone: those on the chain of dependencies that has most of them."""
    spans: dict[GenerationId, int] = {}
    for record in records:  # in the order of asking: what a generation stands on comes before it
        before = max((spans.get(parent, 0) for parent in record.parents), default=0)
        spans[record.id] = before + (record.completion if record.role == role else 0)
    return max(spans.values(), default=0)


def computation_graph(records: Iterable[GenerationRecord]) -> nx.DiGraph[GenerationId]:
    """The run as a graph: a node for each generation (`record` is its attribute), an edge for each dependency."""
    import networkx as nx

    graph: nx.DiGraph[GenerationId] = nx.DiGraph()
    for record in records:
        graph.add_node(record.id, record=record)
        graph.add_edges_from((parent, record.id) for parent in record.parents)
    return graph


def critical_path(graph: nx.DiGraph[GenerationId]) -> list[GenerationRecord]:
    """The chain of dependent generations with most completion tokens, from first to last."""
    import networkx as nx

    best: dict[GenerationId, tuple[int, GenerationId | None]] = {}
    for each in nx.topological_sort(graph):
        before = max(graph.predecessors(each), key=lambda parent: best[parent][0], default=None)
        so_far = best[before][0] if before is not None else 0
        best[each] = (so_far + graph.nodes[each]["record"].completion, before)
    node = max(best, key=lambda each: best[each][0], default=None)
    path: list[GenerationRecord] = []
    while node is not None:
        path.append(graph.nodes[node]["record"])
        node = best[node][1]
    return path[::-1]
