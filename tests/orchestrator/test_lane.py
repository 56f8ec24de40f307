"""The scheduler on a virtual clock: slots, overload, pauses, rates, leaders, deadlines, retries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from anabranch import Orchestrator
from anabranch.orchestrator.backend import Call, Capabilities, Delta, End, PrefixSharing
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import (
    BackendError,
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    InvalidParameter,
    MalformedResponse,
    RequestRejected,
)
from anabranch.orchestrator.scheduler import Job, Lane, Limits
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.serving.backends.scripted import DEFAULT_CAPABILITIES
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Record:
    """A sink that keeps what it is told."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.text = ""
        self.attempts: list[int] = []
        self.delays: list[float] = []

    def ready(self, capabilities: Capabilities) -> Call:
        return self._call

    def started(self, attempt: int) -> None:
        self.attempts.append(attempt)

    def feed(self, delta: Delta) -> None:
        self.text += delta.text

    def retrying(self, attempt: int, error: BackendError, delay_s: float) -> None:
        self.delays.append(delay_s)

    @property
    def wrote(self) -> bool:
        return bool(self.text)


def job(run: str = "run", *, question: str = "q", priority: float = 0.0, group: str = "") -> Job:
    call = Call(rid=uuid.uuid4().hex, branch=Branch.of(question), group=group)
    return Job(sink=Record(call), run=run, priority=priority, group=group)


async def perform_all(lane: Lane, jobs: list[Job]) -> list[BaseException | None]:
    """Run all, side by side; the error of each."""
    errors: list[BaseException | None] = [None] * len(jobs)

    async def one(index: int) -> None:
        try:
            await lane.perform(jobs[index])
        except BackendError as error:
            errors[index] = error

    async with asyncio.TaskGroup() as group:
        for index in range(len(jobs)):
            group.create_task(one(index))
    return errors


def test_no_more_calls_are_in_flight_than_the_limit() -> None:
    """The start limit holds, then doubles round by round while all goes well."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok", delay_s=1))
        lane = Lane(backend, Limits(start=4, most=16))
        await perform_all(lane, [job() for _ in range(100)])
        assert backend.most_running == 16
        assert [sum(log.started_at == second for log in backend.calls) for second in range(4)] == [4, 8, 16, 16]
        assert lane.in_flight == lane.waiting == 0

    run_virtual(scenario())


def test_an_overloaded_server_is_backed_off_from_and_all_calls_end_well() -> None:
    """A server that takes three at a time and turns the rest away gets all its calls done."""

    async def scenario() -> None:
        def reply(call: Call) -> Reply:
            if backend.running > 3:
                return Reply.failing(BackendOverloaded("busy", status_code=429))
            return Reply.of("ok", delay_s=1)

        backend = ScriptedBackend(reply)
        lane = Lane(backend, Limits(start=16))
        errors = await perform_all(lane, [job() for _ in range(60)])
        assert errors == [None] * 60
        assert lane.limit >= 1

    run_virtual(scenario())


def test_retry_after_pauses_the_whole_lane() -> None:
    """When the server names a time, nobody knocks before it."""

    async def scenario() -> None:
        refused = False

        def reply(call: Call) -> Reply:
            nonlocal refused
            if not refused:
                refused = True
                return Reply.failing(BackendOverloaded("busy", retry_after=7.0))
            return Reply.of("ok")

        backend = ScriptedBackend(reply)
        lane = Lane(backend, Limits(start=1))
        assert await perform_all(lane, [job() for _ in range(3)]) == [None] * 3
        assert [log.started_at >= 7.0 for log in backend.calls] == [False, True, True, True]

    run_virtual(scenario())


def test_a_request_rate_is_not_exceeded() -> None:
    """asyncio-throttle paces the lane: so many requests in any period, and no slot is held meanwhile."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok"))
        lane = Lane(backend, Limits(start=100, requests_per_s=5))
        await perform_all(lane, [job() for _ in range(20)])
        starts = [log.started_at for log in backend.calls]
        assert all(sum(s <= t < s + 1.0 for t in starts) <= 5 for s in starts)
        assert 3.0 <= starts[-1] < 4.0
        await lane.aclose()

    run_virtual(scenario())


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_senseless_rate_is_refused(rate: float) -> None:
    """A rate that is not positive is an error that names the parameter."""
    with pytest.raises(InvalidParameter, match="requests_per_s"):
        Lane(ScriptedBackend([]), Limits(requests_per_s=rate))


def test_a_small_run_is_not_held_up_by_a_large_one() -> None:
    """Slots are shared between runs, not first come first served over all."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok", delay_s=1))
        lane = Lane(backend, Limits(start=4, most=4))
        big, small = [job("big") for _ in range(200)], [job("small", question="small") for _ in range(4)]
        await perform_all(lane, big + small)
        ends = [log.ended_at for log in backend.calls if log.call.branch.question == "small"]
        assert max(end for end in ends if end is not None) <= 3.0

    run_virtual(scenario())


def test_priority_decides_when_slots_are_short() -> None:
    """What has most still hanging on it goes first."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok", delay_s=1))
        lane = Lane(backend, Limits(start=1, most=1))
        await perform_all(lane, [job(question=str(p), priority=p) for p in (0.0, 1.0, 5.0, 3.0)])
        assert [log.call.branch.question for log in backend.calls] == ["0.0", "5.0", "3.0", "1.0"]

    run_virtual(scenario())


def test_a_leader_goes_ahead_where_siblings_would_not_share() -> None:
    """Siblings wait for the leader's first piece, not for its end; other groups do not wait."""

    async def scenario() -> None:
        capabilities = replace(DEFAULT_CAPABILITIES, prefix_sharing=PrefixSharing.LEADER)
        backend = ScriptedBackend(
            lambda call: Reply(chunks=("a", "b"), delay_s=2.0, chunk_s=10.0), capabilities=capabilities
        )
        lane = Lane(backend)
        await perform_all(lane, [*(job(group="g") for _ in range(3)), job(group="other")])
        assert sorted(log.started_at for log in backend.calls) == [0.0, 0.0, 2.0, 2.0]

    run_virtual(scenario())


def test_a_leader_that_fails_does_not_hold_its_siblings() -> None:
    """The siblings go on when the leader cannot."""

    async def scenario() -> None:
        capabilities = replace(DEFAULT_CAPABILITIES, prefix_sharing=PrefixSharing.LEADER)
        replies = [Reply.failing(RequestRejected("no")), Reply.of("ok"), Reply.of("ok")]
        lane = Lane(ScriptedBackend(replies, capabilities=capabilities))
        errors = await perform_all(lane, [job(group="g") for _ in range(3)])
        assert [type(error) for error in errors] == [RequestRejected, type(None), type(None)]

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("reply", "limits", "says", "ends_at"),
    [
        (Reply.hanging(), Limits(first_token_s=30), "first_token_s", 30.0),
        (Reply.hanging(after="some text"), Limits(first_token_s=300, idle_s=20), "idle_s", 20.0),
        (Reply.of("a b c d e", chunk_s=4), Limits(total_s=10), "total_s", 10.0),
    ],
)
def test_a_stuck_call_times_out_and_says_which_limit(
    reply: Reply, limits: Limits, says: str, ends_at: float
) -> None:
    """No first piece, no further piece, or no end in time: each is a BackendTimeout, and the call is closed."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: reply)
        lane = Lane(backend, limits, RetryPolicy(attempts=1))
        with pytest.raises(BackendTimeout, match=says):
            await lane.perform(job())
        assert asyncio.get_running_loop().time() == pytest.approx(ends_at)
        assert (backend.calls[0].state, lane.in_flight) == ("closed", 0)

    run_virtual(scenario())


def test_a_slow_stream_that_goes_on_is_left_alone() -> None:
    """The idle limit counts from the last piece, not from the first."""

    async def scenario() -> None:
        lane = Lane(ScriptedBackend(lambda call: Reply.of("a b c d e f", chunk_s=15)), Limits(idle_s=20))
        one = job()
        await lane.perform(one)
        assert one.sink.wrote

    run_virtual(scenario())


def test_what_is_temporary_is_tried_again_and_only_that() -> None:
    """A server that is back answers; a refused request is not repeated."""

    async def scenario() -> None:
        flaky = ScriptedBackend([Reply.failing(BackendUnavailable("down")), Reply.of("ok")])
        one = job()
        await Lane(flaky).perform(one)
        assert isinstance(one.sink, Record)
        assert (one.sink.attempts, one.sink.text) == ([1, 2], "ok")
        refusing = ScriptedBackend([Reply.failing(RequestRejected("bad")), Reply.of("never")])
        with pytest.raises(RequestRejected):
            await Lane(refusing).perform(job())
        assert len(refusing.calls) == 1

    run_virtual(scenario())


def test_nothing_is_repeated_once_text_has_come() -> None:
    """A stream that breaks in the middle fails: its text may be with the caller already."""

    async def scenario() -> None:
        backend = ScriptedBackend(
            [Reply.failing(BackendUnavailable("died"), after="some text"), Reply.of("again")]
        )
        with pytest.raises(BackendUnavailable):
            await Lane(backend).perform(job())
        assert len(backend.calls) == 1

    run_virtual(scenario())


def test_attempts_are_bounded_and_waits_grow_and_keep_to_retry_after() -> None:
    """The last error is raised after the last attempt; no wait is shorter than the server asked."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.failing(BackendOverloaded("busy", retry_after=2.0)))
        one = job()
        with pytest.raises(BackendOverloaded):
            await Lane(backend, retry=RetryPolicy(overload_attempts=4)).perform(one)
        assert isinstance(one.sink, Record)
        assert len(backend.calls) == 4
        assert all(delay >= 2.0 for delay in one.sink.delays)

    run_virtual(scenario())


def test_a_server_that_asks_for_too_long_a_wait_is_not_tried_again() -> None:
    """The caller learns at once, with the server's own figure."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.failing(BackendOverloaded("busy", retry_after=3600.0)))
        with pytest.raises(BackendOverloaded) as caught:
            await Lane(backend).perform(job())
        assert caught.value.retry_after == 3600.0
        assert len(backend.calls) == 1

    run_virtual(scenario())


def test_no_slot_is_held_while_a_call_waits_for_its_retry() -> None:
    """Another call goes ahead in the meantime."""

    async def scenario() -> None:
        def reply(call: Call) -> Reply:
            first = call.branch.question == "flaky" and len(backend.calls) == 1
            return Reply.failing(BackendUnavailable("down", retry_after=50.0)) if first else Reply.of("ok")

        backend = ScriptedBackend(reply)
        lane = Lane(backend, Limits(start=1, most=1))
        await perform_all(lane, [job(question="flaky"), job(question="other")])
        assert [log.started_at < 50.0 for log in backend.calls] == [True, True, False]

    run_virtual(scenario())


def test_cancelled_waiters_leave_no_trace() -> None:
    """A call that is given up while it waits neither runs nor keeps its place."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("ok", delay_s=1))
        lane = Lane(backend, Limits(start=1, most=1))
        tasks = [asyncio.create_task(lane.perform(job(question=str(i)))) for i in range(5)]
        await asyncio.sleep(0.5)
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert [log.call.branch.question for log in backend.calls] == ["0", "1", "3", "4"]
        assert (lane.in_flight, lane.waiting) == (0, 0)

    run_virtual(scenario())


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


def test_a_server_that_shares_only_when_idle_gets_leaders_beside_other_work() -> None:
    """Alone, the siblings of a fork go out together; beside another fork's calls, one of them goes ahead."""

    async def scenario() -> None:
        capabilities = replace(DEFAULT_CAPABILITIES, prefix_sharing=PrefixSharing.WHEN_IDLE)
        backend = ScriptedBackend(
            lambda call: Reply.of("a b", delay_s=2.0, chunk_s=10.0), capabilities=capabilities
        )
        lane = Lane(backend)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(perform_all(lane, [job(group="first") for _ in range(3)]))
            await asyncio.sleep(1)
            tasks.create_task(perform_all(lane, [job(group="second") for _ in range(3)]))
        assert [log.started_at for log in backend.calls] == [0.0, 0.0, 0.0, 1.0, 3.0, 3.0]

    run_virtual(scenario())
