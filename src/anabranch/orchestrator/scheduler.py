"""Scheduler: all generations of all runs pass through it, on one lane for each backend.

A lane decides when a call goes to its server: concurrency that adapts to the server, request rate, fairness between
runs, priorities, prefix leaders, retries, deadlines. What a call is for, and what becomes of its output, it does not
know. See docs/design/scheduler.md.

Invariant: a slot is held exactly while a call is at the server; never while it waits for a retry.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from anabranch.orchestrator.backend import Backend, Call, Capabilities, Delta, End, PrefixSharing
from anabranch.orchestrator.errors import (
    BackendError,
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    InvalidParameter,
)
from anabranch.orchestrator.queueing import AdaptiveLimit, FairQueue
from anabranch.orchestrator.retrying import RetryPolicy

if TYPE_CHECKING:
    from asyncio_throttle.throttler import Throttler

QUEUED_S = 1.0
"""A call that waited longer than this inside the server shows that more calls in flight gain nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard one backend is driven.

    Attributes:
        start: calls in flight at first; the lane adapts from there.
        most: calls in flight at most; None takes the backend's own figure.
        requests_per_s: request rate that is not exceeded; None is unlimited.
        first_token_s: seconds that a call may take to its first piece, the server's queue included.
        idle_s: seconds between two pieces.
        total_s: seconds that a call may take in all; None is unlimited.
    """

    start: int = 16
    most: int | None = None
    requests_per_s: float | None = None
    first_token_s: float = 600.0
    idle_s: float = 120.0
    total_s: float | None = None


class Sink(Protocol):
    """Where a call's output goes: called by the lane as things happen."""

    def started(self, attempt: int) -> None:
        """The call got its slot."""

    def feed(self, delta: Delta) -> None:
        """A piece arrived."""

    def retrying(self, attempt: int, error: BackendError, delay_s: float) -> None:
        """The attempt failed; another one follows."""

    @property
    def wrote(self) -> bool:
        """Whether anything has arrived: from then on there is no retry."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A call on its way through a lane."""

    call: Call
    sink: Sink
    run: str
    priority: float = 0.0
    granted: asyncio.Future[None] | None = None


class Lane:
    """The way to one backend."""

    def __init__(
        self, backend: Backend, limits: Limits | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.in_flight = 0
        self._retry = retry or RetryPolicy()
        self._limit = AdaptiveLimit(start=self.limits.start, most=self.limits.most or 1_000_000)
        self._queue: FairQueue[Job] = FairQueue()
        self._paused_until = float("-inf")
        self._probing = asyncio.Lock()
        self._probed = False
        self._pump: asyncio.Task[None] | None = None
        self._throttler = _throttler(self.limits.requests_per_s)
        self._leaders = _Leaders()

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._queue)

    @property
    def limit(self) -> int:
        """Calls that may be in flight at present."""
        return self._limit.value

    async def capabilities(self) -> Capabilities:
        """What the backend can do, as far as it is known by now: a backend may learn from its server's refusals."""
        if not self._probed:
            async with self._probing:
                if not self._probed:
                    found = await self.backend.probe()
                    self._limit.cap(min(found.max_concurrency, self.limits.most or found.max_concurrency))
                    self._probed = True
        return await self.backend.probe()

    async def perform(self, job: Job) -> None:
        """Run a call to its end, feeding its sink.

        Raises:
            BackendError: it failed, and no retry is left or allowed.
        """
        try:
            await self._attempt(job, 1)
        except BackendError as error:
            if job.sink.wrote or not self._retry.allows(error, 1):
                raise
            await self._perform_again(job, error)

    async def _perform_again(self, job: Job, failed: BackendError) -> None:
        """The further attempts. They stand apart since tenacity's objects form reference cycles, around all they hold."""
        sink = job.sink
        async for attempt in self._retry.loop(wrote=lambda: sink.wrote, retrying=sink.retrying):
            with attempt:
                number = attempt.retry_state.attempt_number
                if number == 1:
                    raise failed
                await self._attempt(job, number)

    async def aclose(self) -> None:
        """Stop pacing and close the backend."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        await self.backend.aclose()

    # One attempt

    async def _attempt(self, job: Job, number: int) -> None:
        sharing = (await self.capabilities()).prefix_sharing
        async with self._leaders.turn(job.call.group, sharing) as leading, self._slot(job):
            started_at = asyncio.get_running_loop().time()
            job.sink.started(number)
            try:
                queued_s = await self._stream(job, leading)
            except BackendOverloaded as error:
                self._back_off(started_at, error)
                raise
            self._limit.succeeded(in_flight=self.in_flight, queued=queued_s > QUEUED_S)

    async def _stream(self, job: Job, leading: asyncio.Event | None) -> float:
        """Feed the sink to the end of the stream; returns the seconds that the call waited inside the server."""
        clock, sink = asyncio.get_running_loop().time, job.sink
        end: End | None = None
        async with (
            _Deadlines(self.limits, self.backend.name) as deadlines,
            aclosing(self.backend.stream(job.call)) as stream,
        ):
            async for delta in stream:
                deadlines.last = clock()
                if leading is not None:
                    leading.set()
                end = delta.end or end
                sink.feed(delta)
        if end is None:
            raise BackendUnavailable(f"the stream of {self.backend.name} ended in the middle")
        return end.queued_s or 0.0

    def _back_off(self, started_at: float, error: BackendOverloaded) -> None:
        now = asyncio.get_running_loop().time()
        self._limit.overloaded(started_at=started_at, now=now)
        if error.retry_after:
            self._paused_until = max(self._paused_until, now + error.retry_after)

    # Slots

    @asynccontextmanager
    async def _slot(self, job: Job) -> AsyncIterator[None]:
        await self._acquire(job)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._dispatch()

    async def _acquire(self, job: Job) -> None:
        job.granted = asyncio.get_running_loop().create_future()
        self._queue.push(job, run=job.run, priority=job.priority, group=job.call.group)
        self._dispatch()
        try:
            await job.granted
        except asyncio.CancelledError:
            if job.granted.done() and not job.granted.cancelled():
                self.in_flight -= 1
                self._dispatch()
            raise

    def _dispatch(self) -> None:
        """Hand out free slots. Called whenever one may have become free, or a call came."""
        if self._pump is not None or not self._free():
            return
        wait = self._paused_until - asyncio.get_running_loop().time()
        if wait > 0 or self._throttler is not None:
            self._pump = asyncio.get_running_loop().create_task(self._paced(), name="anabranch-lane-pump")
            self._pump.add_done_callback(self._pump_ended)
            return
        while self._free():
            self._grant()

    def _free(self) -> bool:
        return len(self._queue) > 0 and self.in_flight < self._limit.value

    def _grant(self) -> None:
        job = self._queue.pop()
        assert job.granted is not None
        if not job.granted.done():
            self.in_flight += 1
            job.granted.set_result(None)

    async def _paced(self) -> None:
        """Hand out slots while the server wants a pause, or a request rate is set."""
        loop = asyncio.get_running_loop()
        while self._free():
            if (wait := self._paused_until - loop.time()) > 0:
                await asyncio.sleep(wait)
                continue
            if self._throttler is not None:
                await self._throttler.acquire()  # type: ignore[no-untyped-call]
            elif not self._free():
                break
            if self._free():
                self._grant()

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        self._pump = None
        if not task.cancelled() and task.exception() is None:
            self._dispatch()


class _Deadlines:
    """Bounds the time to the first piece, between pieces, and in all, at no cost for each piece.

    One timer looks at `last` now and then; a piece only has to write the time there.
    """

    def __init__(self, limits: Limits, name: str) -> None:
        self._limits, self._name = limits, name
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._ends_at = self._loop.time() + (limits.total_s or float("inf"))
        self._began = self._loop.time()
        self.last: float | None = None
        """When the last piece came."""

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise BackendTimeout(self._why(), retryable=self.last is None) from error

    def _check(self) -> None:
        now, limits = self._loop.time(), self._limits
        due = self._began + limits.first_token_s if self.last is None else self.last + limits.idle_s
        due = min(due, self._ends_at)
        if now >= due:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_at(min(due, now + limits.idle_s), self._check)

    def _why(self) -> str:
        limits = self._limits
        if self._loop.time() >= self._ends_at:
            return f"{self._name} did not finish within {limits.total_s} s (total_s)"
        if self.last is None:
            return f"no first token from {self._name} within {limits.first_token_s} s (first_token_s)"
        return f"no further token from {self._name} within {limits.idle_s} s (idle_s)"


class _Leaders:
    """Lets one call of each fork go ahead, where siblings would otherwise all compute their common prefix."""

    def __init__(self, remembered: int = 1024) -> None:
        self._gates: OrderedDict[str, asyncio.Event] = OrderedDict()
        self._remembered = remembered

    @asynccontextmanager
    async def turn(self, group: str, sharing: PrefixSharing) -> AsyncIterator[asyncio.Event | None]:
        """Wait for the leader's first piece; a leader gets the event to set at its own."""
        if sharing is not PrefixSharing.LEADER or not group:
            yield None
        elif gate := self._gates.get(group):
            await gate.wait()
            yield None
        else:
            gate = self._gates[group] = asyncio.Event()
            if len(self._gates) > self._remembered:
                self._gates.popitem(last=False)[1].set()
            try:
                yield gate
            finally:
                gate.set()


def _throttler(requests_per_s: float | None) -> Throttler | None:
    """A pacer for this rate: whole requests a second as they are, slower rates as one request in a longer period."""
    if requests_per_s is None:
        return None
    from asyncio_throttle.throttler import Throttler

    if requests_per_s <= 0:
        raise InvalidParameter("requests_per_s", f"must be positive, got {requests_per_s}")
    if requests_per_s < 1:
        return Throttler(rate_limit=1, period=1.0 / requests_per_s)
    return Throttler(rate_limit=int(requests_per_s), period=int(requests_per_s) / requests_per_s)
