"""Lanes beside backends and callers that misbehave: bugs, hangs, cancellations, dead servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from anabranch import Orchestrator
from anabranch.orchestrator.backend import Call, Capabilities, Delta, End
from anabranch.orchestrator.errors import (
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    MalformedResponse,
)
from anabranch.orchestrator.scheduler import Lane, Limits
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from lanes import Record, job, perform_all


class Odd(ScriptedBackend):
    """A backend that misbehaves in the way of its subclass."""

    def __init__(self) -> None:
        super().__init__([])


def perform_one(backend: ScriptedBackend, limits: Limits | None = None) -> tuple[float, str]:
    """Perform one job on it; the time it took and what arrived."""

    async def scenario() -> tuple[float, str]:
        lane, one = Lane(backend, limits, RetryPolicy(attempts=1)), job()
        await lane.perform(one)
        assert lane.in_flight == 0
        assert isinstance(one.sink, Record)
        return asyncio.get_running_loop().time(), one.sink.text

    return run_virtual(scenario())


def test_a_bug_in_a_backend_is_an_error_under_its_name() -> None:
    """What a backend raises that is none of our errors becomes one, with the cause kept."""

    class Buggy(Odd):
        async def stream(self, call: Call) -> AsyncGenerator[Delta]:
            yield Delta(text="a")
            raise KeyError("choices")

    with pytest.raises(MalformedResponse, match="KeyError") as caught:
        perform_one(Buggy())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_backend_that_cancels_itself_is_not_taken_for_our_cancellation() -> None:
    """The call fails; it does not look as if we had stopped it."""

    class Quitting(Odd):
        async def stream(self, call: Call) -> AsyncGenerator[Delta]:
            yield Delta(text="a")
            raise asyncio.CancelledError

    with pytest.raises(BackendUnavailable, match="gave the call up"):
        perform_one(Quitting())


def test_what_happens_after_the_end_changes_nothing() -> None:
    """A stream that stays open, goes on, or breaks after its end is closed; the call has succeeded."""

    class Lingering(Odd):
        def __init__(self, way: str) -> None:
            super().__init__()
            self.way = way

        async def stream(self, call: Call) -> AsyncGenerator[Delta]:
            yield Delta(text="whole")
            yield Delta(tokens=0, end=End())
            if self.way == "stays open":
                await asyncio.Event().wait()
            if self.way == "breaks":
                raise BackendUnavailable("reset")
            yield Delta(text=" and more", end=End())

    for way in ("stays open", "breaks", "goes on"):
        took, text = perform_one(Lingering(way))
        assert text == "whole"
        assert took <= 5.0


def test_clean_up_that_hangs_is_interrupted() -> None:
    """Neither a cancelled caller nor a timed-out call waits for ever for a backend to close."""

    class Clinging(Odd):
        async def stream(self, call: Call) -> AsyncGenerator[Delta]:
            try:
                yield Delta(text="a")
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()

    with pytest.raises(BackendTimeout, match="idle_s"):
        perform_one(Clinging(), Limits(idle_s=10))

    async def cancelled() -> None:
        async with Orchestrator(Clinging()) as orch:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await orch.ask("Q")
            assert asyncio.get_running_loop().time() <= 12.0
            assert orch.lanes[0].in_flight == 0

    run_virtual(cancelled())


def test_a_cancelled_call_is_never_sent_again() -> None:
    """A backend that fails while it is being closed does not turn a cancellation into a retry."""

    class Stumbling(Odd):
        asked = 0

        async def stream(self, call: Call) -> AsyncGenerator[Delta]:
            self.asked += 1
            try:
                await asyncio.Event().wait()
                yield Delta()
            finally:
                raise BackendUnavailable("connection reset")

    async def scenario() -> None:
        backend = Stumbling()
        task = asyncio.create_task(Lane(backend).perform(job()))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert backend.asked == 1

    run_virtual(scenario())


def test_a_wait_that_is_too_long_does_not_hold_up_the_lane() -> None:
    """Retry-After of an hour is that caller's error; others find out for themselves."""

    async def scenario() -> None:
        replies = iter([Reply.failing(BackendOverloaded("busy", retry_after=3600.0)), Reply.of("ok")])
        lane = Lane(ScriptedBackend(lambda call: next(replies)), Limits(start=1))
        errors = await perform_all(lane, [job(), job()])
        assert [type(error) for error in errors] == [BackendOverloaded, type(None)]
        assert asyncio.get_running_loop().time() < 1.0

    run_virtual(scenario())


def test_cancelled_waiters_use_up_no_request_rate() -> None:
    """Five hundred that gave up do not make the next one wait."""

    async def scenario() -> None:
        lane = Lane(ScriptedBackend(lambda call: Reply.of("ok")), Limits(requests_per_s=1))
        tasks = [asyncio.create_task(lane.perform(job())) for _ in range(500)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert lane.waiting == 0
        await lane.perform(job())
        assert asyncio.get_running_loop().time() < 5.0
        await lane.aclose()

    run_virtual(scenario())


def test_a_dead_server_is_asked_once_for_all_who_wait() -> None:
    """A hundred calls to a server that does not answer fail together, after its time is over."""

    class Dead(Odd):
        probes = 0

        async def probe(self) -> Capabilities:
            self.probes += 1
            await asyncio.sleep(2)
            raise BackendUnavailable("refused")

    async def scenario() -> None:
        backend = Dead()
        errors = await perform_all(Lane(backend), [job() for _ in range(100)])
        assert all(isinstance(error, BackendUnavailable) for error in errors)
        assert backend.probes == 3
        assert asyncio.get_running_loop().time() < 10.0

    run_virtual(scenario())


def test_a_server_that_never_says_what_it_can_do_times_out() -> None:
    """Asking for capabilities is bounded like everything else."""

    class Mute(Odd):
        async def probe(self) -> Capabilities:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(BackendTimeout, match="what it can do"):
        perform_one(Mute())


def test_a_closed_lane_turns_away_who_waits_and_who_comes() -> None:
    """No call goes to a backend that has been closed."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok", delay_s=10))
        lane = Lane(backend, Limits(start=1, most=1))
        tasks = [asyncio.create_task(perform_all(lane, [job()])) for _ in range(3)]
        await asyncio.sleep(1)
        await lane.aclose()
        errors = [(await task)[0] for task in tasks] + await perform_all(lane, [job()])
        assert [type(error) for error in errors] == [type(None), *[BackendUnavailable] * 3]
        assert len(backend.calls) == 1

    run_virtual(scenario())
