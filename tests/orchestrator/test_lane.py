"""The way to a backend on a virtual clock: slots, overload, pauses, rates, leaders, deadlines, retries."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.errors import (
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    InvalidParameter,
    RequestRejected,
)
from anabranch.orchestrator.scheduler import Lane, Limits
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from lanes import Record, job, perform_all


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


def test_each_call_of_a_lane_has_its_own_deadline() -> None:
    """Calls that set out one after the other are late one after the other; one that is quick holds up none."""

    async def scenario() -> None:
        replies = {"quick": Reply.of("a b", chunk_s=1), "slow": Reply.hanging(after="a")}
        lane = Lane(
            ScriptedBackend(lambda call: replies[call.branch.question.split()[0]]),
            Limits(first_token_s=100, idle_s=20),
            RetryPolicy(attempts=1),
        )
        ended: dict[str, float] = {}

        async def one(question: str, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            try:
                await lane.perform(job(question=question))
            except BackendTimeout:
                ended[question] = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            for question, delay_s in (
                ("slow 1", 0),
                ("quick", 0),
                ("slow 2", 7),
                ("quick", 21),
                ("slow 3", 30),
            ):
                group.create_task(one(question, delay_s))
        assert ended == {
            "slow 1": pytest.approx(20.0),
            "slow 2": pytest.approx(27.0),
            "slow 3": pytest.approx(50.0),
        }

    run_virtual(scenario())
