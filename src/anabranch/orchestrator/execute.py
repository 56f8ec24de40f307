"""Executes a TaskGraph: the driver that owns the tasks. Each node starts the moment its own parents are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

from anabranch.orchestrator import events
from anabranch.orchestrator.errors import AnabranchError, BudgetExhausted, GraphError, TooFewSucceeded
from anabranch.orchestrator.policy import Outcome, Policy
from anabranch.orchestrator.scope import Scope
from anabranch.orchestrator.taskgraph import Node, TaskGraph

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run

T = TypeVar("T")
R = TypeVar("R")

priority: ContextVar[float] = ContextVar("anabranch_priority", default=0.0)
"""Scheduling priority of what the running task generates: the weight of what still hangs on its node."""


async def execute(
    run: Run,
    graph: TaskGraph[T],
    work: Callable[[Node[T], Mapping[str, R]], Awaitable[R]],
    policy: Policy,
    arriving: AsyncIterable[Node[T]] | None,
) -> dict[str, Outcome[R]]:
    """See `Run.execute`."""
    execution = _Execution(run, graph, work, policy)
    async with run.scope() as scope:
        if arriving is not None:
            scope.start(execution.grow(arriving))
        await execution.until_done(scope)
    execution.check()
    return execution.outcomes()


class _Execution(Generic[T, R]):
    def __init__(
        self,
        run: Run,
        graph: TaskGraph[T],
        work: Callable[[Node[T], Mapping[str, R]], Awaitable[R]],
        policy: Policy,
    ) -> None:
        self._run, self._graph, self._work, self._policy = run, graph, work, policy
        self._results: dict[str, R] = {}
        self._errors: dict[str, Exception] = {}
        self._changed = asyncio.Event()

    async def until_done(self, scope: Scope) -> None:
        """Start what is ready, whenever something has changed, until all has ended."""
        while not self._enough():
            for node in self._graph.ask():
                self._tell_state(node.id)
                scope.start(self._do(node), name=f"node {node.id}")
            if self._graph.done:
                break
            self._changed.clear()
            await self._changed.wait()

    async def grow(self, arriving: AsyncIterable[Node[T]]) -> None:
        """Add the nodes that are still being planned."""
        try:
            async for node in arriving:
                self._graph.add(node)
                self._tell_state(node.id)
                self._changed.set()
        except GraphError as error:
            if self._policy.at_least is None:
                raise
            self._run.warn(f"the rest of the plan is left out: {error}")
        self._graph.seal()
        self._changed.set()

    async def _do(self, node: Node[T]) -> None:
        priority.set(self._graph.remaining(node.id))
        inputs = {need: self._results[need] for need in node.needs}
        error: Exception | None = None
        try:
            self._results[node.id] = await self._work(node, inputs)
        except self._policy.tolerates as caught:
            if self._policy.at_least is None:
                raise
            error = self._errors[node.id] = caught
        for changed in self._graph.tell(node.id, error=None if error is None else str(error)):
            self._tell_state(changed)
        self._changed.set()

    def _enough(self) -> bool:
        return self._policy.enough is not None and len(self._results) >= self._policy.enough

    def _tell_state(self, node_id: str) -> None:
        state = self._run.state
        if state.listeners:
            state.publish(
                events.NodeChanged(
                    t=state.now(),
                    node=node_id,
                    state=self._graph.state(node_id),
                    parents=self._graph.nodes[node_id].needs,
                    reason=self._graph.reason(node_id),
                )
            )

    def check(self) -> None:
        """Raise where fewer nodes succeeded than the policy wants; otherwise warn of each that failed."""
        failures = list(self._errors.values())
        needed = self._policy.at_least or 0
        if self._graph.nodes and len(self._results) < needed:
            exhausted = next((error for error in failures if isinstance(error, BudgetExhausted)), None)
            raise exhausted or TooFewSucceeded(len(self._results), needed, failures)
        for node_id, error in self._errors.items():
            self._run.warn(f"node {node_id!r} failed: {error}")

    def outcomes(self) -> dict[str, Outcome[R]]:
        """What became of each node, in the order of the graph."""
        return {node_id: self._outcome(index, node_id) for index, node_id in enumerate(self._graph.nodes)}

    def _outcome(self, index: int, node_id: str) -> Outcome[R]:
        if node_id in self._results:
            return Outcome(index=index, state="done", value=self._results[node_id])
        if node_id in self._errors:
            return Outcome(index=index, state="failed", error=self._errors[node_id])
        if reason := self._graph.reason(node_id):
            return Outcome(index=index, state="skipped", error=AnabranchError(reason))
        return Outcome(index=index)
