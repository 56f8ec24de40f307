"""Lane: the way to one backend.

A lane decides when a call goes to its server: concurrency that adapts to the server, request rate, fairness between
runs, priorities, prefix leaders, retries, deadlines. What a call is for, and what becomes of its output, it does not
know. See docs/design/scheduler.md.

Invariant: a slot is held exactly while a call is at the server; never while it waits for a retry.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from anabranch.orchestrator.backend import Backend, Call, Capabilities, Delta, End, PrefixSharing
from anabranch.orchestrator.errors import (
    AnabranchError,
    BackendError,
    BackendOverloaded,
    BackendUnavailable,
    InvalidParameter,
    MalformedResponse,
)
from anabranch.orchestrator.scheduler.deadlines import Deadlines
from anabranch.orchestrator.scheduler.leaders import Leaders, Turn, blocks_of
from anabranch.orchestrator.scheduler.load import Load
from anabranch.orchestrator.scheduler.probing import Probe
from anabranch.orchestrator.scheduler.queueing import AdaptiveLimit
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.orchestrator.scheduler.slots import Place, Slots

log = logging.getLogger(__name__)

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

    Raises:
        InvalidParameter: a limit that is not positive.
    """

    start: int = 16
    most: int | None = None
    requests_per_s: float | None = None
    first_token_s: float = 600.0
    idle_s: float = 120.0
    total_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("start", "most", "requests_per_s", "first_token_s", "idle_s", "total_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidParameter(f"limits.{name}", f"must be positive, got {value}")


class Sink(Protocol):
    """Where a call's output goes: called by the lane as things happen."""

    def ready(self, capabilities: Capabilities) -> Call:
        """What the backend can do is known: gives the call, or raises UnsupportedCapability."""
        ...

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
class Job(Place):
    """A call on its way through a lane."""

    sink: Sink
    call: Call | None = None


class Lane:
    """The way to one backend. Belongs to one event loop."""

    def __init__(
        self, backend: Backend, limits: Limits | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.capabilities = Probe(backend, retry or RetryPolicy(), self._cap)
        """What the backend can do; `await lane.capabilities()`."""
        self._retry = retry or RetryPolicy()
        self._limit = AdaptiveLimit(start=self.limits.start, most=self.limits.most or 1_000_000)
        self._slots = Slots(self._limit, self.limits.requests_per_s, backend.name)
        self._leaders = Leaders()
        self._deadlines = Deadlines(self.limits, backend.name)

    @property
    def in_flight(self) -> int:
        """Calls that are at the server."""
        return self._slots.taken

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return self._slots.waiting

    @property
    def limit(self) -> int:
        """Calls that may be in flight at present."""
        return self._limit.value

    @property
    def load(self) -> Load:
        """How busy the backend is with what goes through here."""
        return Load(in_flight=self.in_flight, waiting=self.waiting, slots=self.limit)

    async def perform(self, job: Job) -> None:
        """Run a call to its end, feeding its sink.

        Raises:
            BackendError: it failed, and no retry is left or allowed.
            UnsupportedCapability: the backend cannot do what the call needs; it was not asked.
        """
        capabilities = await self.capabilities()
        job.call = job.sink.ready(capabilities)
        try:
            await self._attempt(job, capabilities, 1)
        except BackendError as error:
            if not self._retry.allows(error, 1):
                raise
            await self._perform_again(job, capabilities, error)

    async def _perform_again(self, job: Job, capabilities: Capabilities, failed: BackendError) -> None:
        """The further attempts. They stand apart since tenacity's objects form reference cycles around all they hold."""
        sink = job.sink
        async for attempt in self._retry.loop(wrote=lambda: sink.wrote, retrying=sink.retrying):
            with attempt:
                number = attempt.retry_state.attempt_number
                if number == 1:
                    raise failed
                await self._attempt(job, capabilities, number)

    async def aclose(self) -> None:
        """Turn away what waits, stop pacing, and close the backend."""
        await self._slots.aclose()
        await self.backend.aclose()

    # One attempt

    async def _attempt(self, job: Job, capabilities: Capabilities, number: int) -> None:
        async with self._leaders.turn(_begins(job, capabilities)) as turn:
            await self._slots.acquire(job)
            started_at = asyncio.get_running_loop().time()
            try:
                job.sink.started(number)
                end = await self._stream(job, turn)
                queued = (end.queued_s or 0.0) > QUEUED_S
                self._limit.succeeded(in_flight=self.in_flight, queued=queued)
            except BackendOverloaded as error:
                self._back_off(started_at, error)
                raise
            finally:
                self._slots.release()

    async def _stream(self, job: Job, turn: Turn) -> End:
        """Read the stream to its end; whatever goes wrong becomes an error of the backend's."""
        call, sink, clock = job.call, job.sink, asyncio.get_running_loop().time
        assert call is not None
        end: End | None = None
        try:
            with self._deadlines.call() as deadline:
                async with aclosing(self.backend.stream(call)) as stream:
                    async for delta in stream:
                        if end is not None:
                            raise MalformedResponse(f"{self.backend.name} went on after its stream's end")
                        if deadline.last is None:
                            turn.computed()
                        deadline.last = clock()
                        sink.feed(delta)
                        if delta.end is not None:
                            end = delta.end
                            deadline.close_soon()
        except BaseException as error:
            if _cancelling():
                raise asyncio.CancelledError from error
            if end is None:
                raise self._attributed(error) from error
            log.warning("%s failed after the end of a stream: %r", self.backend.name, error)
        if end is None:
            raise BackendUnavailable(f"the stream of {self.backend.name} ended in the middle")
        return end

    def _attributed(self, error: BaseException) -> BaseException:
        """A backend's failure under the name of an error of ours; what is none of the backend's stays as it is."""
        if isinstance(error, asyncio.CancelledError):
            return BackendUnavailable(f"{self.backend.name} gave the call up")
        if isinstance(error, AnabranchError) or not isinstance(error, Exception):
            return error
        return MalformedResponse(f"{self.backend.name} failed: {error!r}")

    def _back_off(self, started_at: float, error: BackendOverloaded) -> None:
        now = asyncio.get_running_loop().time()
        self._limit.overloaded(started_at=started_at, now=now)
        if error.retry_after and error.retry_after <= self._retry.longest_wait_s:
            self._slots.pause(until=now + error.retry_after)

    def _cap(self, capabilities: Capabilities) -> None:
        most = capabilities.max_concurrency
        self._limit.cap(min(most, self.limits.most or most))


def _cancelling() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _begins(job: Job, capabilities: Capabilities) -> list[int]:
    """What a call begins with, as far as others of its run may have to wait for it."""
    if capabilities.prefix_sharing is not PrefixSharing.LEADER:
        return []
    assert job.call is not None
    return blocks_of(job.call.branch, of=f"{job.run} {job.call.model}")
