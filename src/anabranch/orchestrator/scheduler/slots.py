"""Slots: places among the calls that are at a server, handed out fairly, no faster than a rate, not in a pause."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.orchestrator.errors import BackendUnavailable
from anabranch.orchestrator.scheduler.queueing import AdaptiveLimit, FairQueue

if TYPE_CHECKING:
    from asyncio_throttle.throttler import Throttler


@dataclass(slots=True, eq=False, kw_only=True)
class Place:
    """A place in the queue: whose it is, and how it is ordered. `granted` is set when the slot is there."""

    run: str
    group: str = ""
    priority: float = 0.0
    granted: asyncio.Future[None] | None = None


class Slots:
    """So many slots as the limit says at present."""

    def __init__(self, limit: AdaptiveLimit, requests_per_s: float | None, name: str) -> None:
        self.taken = 0
        self._limit, self._name = limit, name
        self._queue: FairQueue[Place] = FairQueue()
        self._paused_until = float("-inf")
        self._throttler = _throttler(requests_per_s)
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._queue)

    def pause(self, *, until: float) -> None:
        """Hand out none before this time of the event loop."""
        self._paused_until = max(self._paused_until, until)

    async def aclose(self) -> None:
        """Turn away those who wait, and all who come."""
        self._closed = True
        while len(self._queue):
            self._turn_away(self._queue.pop())
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def acquire(self, place: Place) -> None:
        """Wait for a slot. Whoever has got one gives it back by `release`.

        Raises:
            BackendUnavailable: the lane is being closed.
        """
        if self._closed:
            raise self._refusal()
        if not self.waiting and self.taken < self._limit.value and not self._paces():
            self.taken += 1  # nobody to be fair to
            return
        place.granted = asyncio.get_running_loop().create_future()
        self._queue.push(place, run=place.run, priority=place.priority, group=place.group)
        self._dispatch()
        try:
            await place.granted
        except asyncio.CancelledError:
            self._queue.remove(place)
            if place.granted.done() and not place.granted.cancelled() and place.granted.exception() is None:
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self.taken -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        """Hand out free slots. Called whenever one may have become free, or a call came."""
        if self._pump is not None or not self._free():
            return
        if self._paces():
            self._pump = asyncio.get_running_loop().create_task(self._paced(), name="anabranch-lane-pump")
            self._pump.add_done_callback(self._pump_ended)
            return
        while self._free():
            self._grant()

    def _paces(self) -> bool:
        """Whether slots are handed out one by one as time goes on, rather than at once."""
        return self._throttler is not None or self._paused_until > asyncio.get_running_loop().time()

    def _free(self) -> bool:
        return len(self._queue) > 0 and self.taken < self._limit.value

    def _grant(self) -> None:
        place = self._queue.pop()
        assert place.granted is not None
        if not place.granted.done():
            self.taken += 1
            place.granted.set_result(None)

    def _turn_away(self, place: Place) -> None:
        if place.granted is not None and not place.granted.done():
            place.granted.set_exception(self._refusal())

    def _refusal(self) -> BackendUnavailable:
        return BackendUnavailable(f"{self._name} was closed by its orchestrator", retryable=False)

    async def _paced(self) -> None:
        """Hand out slots while the server wants a pause, or a request rate is set."""
        loop = asyncio.get_running_loop()
        while self._free():
            if (wait := self._paused_until - loop.time()) > 0:
                await asyncio.sleep(wait)
            elif self._throttler is None:
                self._grant()
            else:
                await self._throttler.acquire()  # type: ignore[no-untyped-call]
                if self._free():
                    self._grant()

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        self._pump = None
        if not task.cancelled() and task.exception() is None:
            self._dispatch()


def _throttler(requests_per_s: float | None) -> Throttler | None:
    """A pacer for this rate: whole requests a second as they are, slower rates as one request in a longer period."""
    if requests_per_s is None:
        return None
    from asyncio_throttle.throttler import Throttler

    if requests_per_s < 1:
        return Throttler(rate_limit=1, period=1.0 / requests_per_s)
    return Throttler(rate_limit=int(requests_per_s), period=int(requests_per_s) / requests_per_s)
