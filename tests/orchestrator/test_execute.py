"""Task graphs being executed: when nodes start, what failures do, plans that are still being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from anabranch import Branch, Limits, Node, Orchestrator, Policy, Run, TaskGraph
from anabranch.orchestrator.errors import (
    GraphError,
    RequestRejected,
)
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from engine import Do, ask, words


def plan(*edges: tuple[str, tuple[str, ...]]) -> TaskGraph[str]:
    return TaskGraph.of([Node(id=id, needs=needs, payload=id) for id, needs in edges])


DIAMOND = (("a", ()), ("b", ()), ("c", ("a",)), ("d", ("b", "c")))


def test_a_node_starts_the_moment_its_own_parents_are_done() -> None:
    """No level waits for another: c starts when a is done, though b still runs."""
    starts: dict[str, float] = {}

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            starts[node.id] = asyncio.get_running_loop().time()
            parents = " ".join(inputs[need] for need in node.needs)
            live = run.generate(Branch.of(node.payload))
            return f"({parents}{(await live).text})"

        outcomes = await run.execute(plan(*DIAMOND), do)
        run.emit(str(outcomes["d"].value))

    answer = ask(words(a=1, b=5, c=2, d=1), work)
    assert starts == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 5.0}
    assert answer.text == "((b!) ((a!)c!)d!)"


def test_a_failed_node_fails_its_dependants_and_nothing_hangs() -> None:
    """Dependants carry the reason; independent nodes finish."""

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            if node.id == "a":
                raise RequestRejected("boom")
            return node.id

        outcomes = await run.execute(plan(*DIAMOND), do, policy=Policy.tolerate())
        assert {id: outcome.ok for id, outcome in outcomes.items()} == {
            "a": False,
            "b": True,
            "c": False,
            "d": False,
        }
        assert "boom" in str(outcomes["d"].error)

    answer = ask(words(), work)
    assert answer.warnings == ("node 'a' failed: boom",)


def test_a_failed_node_stops_the_graph_where_nothing_is_tolerated() -> None:
    """Without a policy the first failure is raised, and the rest is cancelled."""
    backend = words(b=100)

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            if node.id == "a":
                raise RequestRejected("boom")
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*DIAMOND), do)

    with pytest.raises(RequestRejected, match="boom"):
        ask(backend, work)


def test_a_plan_is_executed_while_it_is_still_being_written() -> None:
    """The first node is at work before the last one is known."""
    starts: dict[str, float] = {}

    async def arriving() -> AsyncIterator[Node[str]]:
        for id, needs in DIAMOND:
            yield Node(id=id, needs=needs, payload=id)
            await asyncio.sleep(10)

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            starts[node.id] = asyncio.get_running_loop().time()
            return node.id

        await run.execute(TaskGraph[str](), do, arriving=arriving())

    ask(words(), work)
    assert starts == {"a": 0.0, "b": 10.0, "c": 20.0, "d": 30.0}


def test_a_bad_node_in_a_streamed_plan_stops_it_with_the_node_named() -> None:
    """A reference to nothing is refused when it arrives."""

    async def arriving() -> AsyncIterator[Node[str]]:
        yield Node(id="a", payload="a")
        yield Node(id="b", needs=("ghost",), payload="b")

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            await asyncio.sleep(100)
            return node.id

        await run.execute(TaskGraph[str](), do, arriving=arriving())

    with pytest.raises(GraphError, match=r"node 'b'.*ghost"):
        ask(words(), work)


def test_nodes_with_more_hanging_on_them_go_first() -> None:
    """The graph's remaining chain is the priority of what its nodes generate."""
    backend = words()
    edges = [("leaf", ()), ("root", ()), *((f"n{i}", (f"n{i - 1}" if i else "root",)) for i in range(3))]

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*edges), do)

    ask(backend, work)
    assert backend.calls[0].call.branch.question == "root"


def test_nothing_to_do_is_no_failure() -> None:
    """An empty fan-out and an empty graph succeed under every policy."""

    async def work(run: Run) -> None:
        async def never(item: object, *_: object) -> str:
            raise AssertionError

        assert await run.map(never, [], Policy.tolerate()) == []
        assert await run.execute(plan(), never, policy=Policy.tolerate()) == {}

    ask(words(), work)


def test_a_streamed_plan_keeps_what_is_done_when_a_later_node_is_bad() -> None:
    """Where losses are tolerated, the rest of a bad plan is left out, with a warning."""

    async def arriving() -> AsyncIterator[Node[str]]:
        yield Node(id="a", payload="a")
        yield Node(id="b", needs=("ghost",), payload="b")
        yield Node(id="c", payload="c")

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return node.id

        outcomes = await run.execute(TaskGraph[str](), do, policy=Policy.tolerate(), arriving=arriving())
        assert {id: outcome.state for id, outcome in outcomes.items()} == {"a": "done"}

    assert "ghost" in ask(words(), work).warnings[0]


def test_a_node_that_becomes_ready_late_overtakes_what_is_less_urgent() -> None:
    """With one slot, the head of a long chain goes before leaves that were queued long ago."""
    backend = ScriptedBackend(lambda call: Reply.of(call.branch.question, delay_s=1.0))
    edges = [("first", ()), *((f"leaf{i}", ()) for i in range(3)), ("head", ("first",)), ("tail", ("head",))]

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*edges), do)

    async def scenario() -> None:
        async with Orchestrator(backend, limits=Limits(start=1, most=1)) as orch:
            await orch.ask("Q", strategy=Do(work))

    run_virtual(scenario())
    order = [log.call.branch.question for log in backend.calls]
    # The slot that "first" frees is handed on at once; from then on the chain goes before the leaves that waited.
    assert order.index("head") < order.index("leaf1")
    assert order.index("head") < order.index("leaf2")
