"""Cancellation as behaviour: whatever is given up leaves no task, no slot and no open call behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch import Branch, Limits, Node, Orchestrator, Policy, Run, TaskGraph
from anabranch.orchestrator.errors import BackendTimeout
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Fan:
    """Many hanging branches at once, by each of the engine's ways to make them."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, run: Run) -> None:
        ways: dict[str, Callable[[Run], Awaitable[object]]] = {
            "relay": lambda run: run.relay(run.generate(run.question)),
            "score": lambda run: run.score(run.question, ("A", "B")),
            "map": self.map,
            "execute": self.execute,
            "scopes": self.scopes,
            "delegate": self.delegate,
        }
        await ways[self.name](run)

    async def map(self, run: Run) -> None:
        async def one(index: int) -> None:
            await run.generate(Branch.of(str(index)))

        await run.map(one, range(20), Policy.tolerate())

    async def execute(self, run: Run) -> None:
        async def do(node: Node[str], inputs: object) -> None:
            await run.generate(Branch.of(node.id))

        await run.execute(TaskGraph.of([Node(id=str(i), payload="") for i in range(20)]), do)

    async def scopes(self, run: Run) -> None:
        async with run.scope():
            run.generate(Branch.of("outer"))
            async with run.scope() as inner:
                inner.spawn(self.map, run)
                await run.generate(Branch.of("inner"))

    async def delegate(self, run: Run) -> None:
        lives = [run.delegate(Fan("map")) for _ in range(3)]
        await lives[0]


WAYS = ["relay", "score", "map", "execute", "scopes", "delegate"]


@pytest.mark.parametrize("way", WAYS)
def test_a_time_out_around_a_hanging_run_leaves_nothing(way: str) -> None:
    """`asyncio.timeout` around ask: no task, no slot, no waiting call; every call is closed at the backend."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.hanging(after="some text"))
        async with Orchestrator(backend, limits=Limits(start=4, most=4)) as orch:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await orch.ask("Q", strategy=Fan(way))
            lane = orch.lanes[0]
            assert (lane.in_flight, lane.waiting, backend.running) == (0, 0, 0)
            assert len(asyncio.all_tasks()) == 1
            assert {log.state for log in backend.calls} == {"closed"}

    run_virtual(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_leaving_a_stream_early_stops_the_run(way: str) -> None:
    """Breaking out of the events cancels every branch at the backend."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.hanging(after="some text"))
        async with Orchestrator(backend) as orch:
            async with orch.stream("Q", strategy=Fan(way)) as stream:
                async for event in stream:
                    if event.type == "generation_started":
                        break
            assert backend.running == 0
            assert len(asyncio.all_tasks()) == 1

    run_virtual(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_cancelling_the_callers_task_is_never_swallowed(way: str) -> None:
    """The caller's cancellation comes back as one, not as an answer."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.hanging())
        async with Orchestrator(backend) as orch:
            task = asyncio.create_task(orch.ask("Q", strategy=Fan(way)))
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert backend.running == 0

    run_virtual(scenario())


def test_the_lane_works_on_after_a_cancelled_run() -> None:
    """Slots that a cancelled run held are there for the next one."""

    async def scenario() -> None:
        backend = ScriptedBackend(
            lambda call: Reply.of("fine") if call.branch.question == "next" else Reply.hanging()
        )
        async with Orchestrator(backend, limits=Limits(start=2, most=2)) as orch:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await orch.ask("Q", strategy=Fan("map"))
            assert (await orch.ask("next")).text == "fine"

    run_virtual(scenario())


def test_a_hanging_server_ends_in_an_error_without_anybodys_time_out() -> None:
    """The engine's own limits end a call that never writes, after its last attempt."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.hanging())
        async with Orchestrator(backend, limits=Limits(first_token_s=60)) as orch:
            with pytest.raises(BackendTimeout):
                await orch.ask("Q")
            assert 60 < asyncio.get_running_loop().time() < 300
        assert len(asyncio.all_tasks()) == 1

    run_virtual(scenario())
