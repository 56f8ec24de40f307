"""The desk where calls queue for slots: `SlotTable`, with waiting.

A slot is given out once no call is on its way any more that came in earlier (its prompt is still being tokenized), or
after a few milliseconds: so that siblings that arrive together are seen together.

Invariant: whoever waits is woken or cancelled; a lease that nobody takes goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from anabranch.serving.backends.local.slots import Lease, SlotTable, Tokens, Wish

GATHER_S = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue."""

    key: int
    lease: asyncio.Future[Lease]


class SlotDesk:
    """Gives out slots. Belongs to one event loop.

    Args:
        folder: where the engine saves what slots hold; files that nobody needs are removed from there.
    """

    def __init__(self, table: SlotTable, folder: Path) -> None:
        self._table, self._folder = table, folder
        self._keys = count()
        self._waiting: dict[int, asyncio.Future[Lease]] = {}
        self._on_their_way = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """While this is open a call is on its way to the desk."""
        self._on_their_way += 1
        try:
            yield
        finally:
            self._on_their_way -= 1
            if not self._on_their_way:
                self._plan()

    def queue(self, wish: Wish) -> Place:
        """A place in the queue; go on to `turn` at once, without waiting for anything else."""
        place = Place(next(self._keys), asyncio.get_running_loop().create_future())
        self._waiting[place.key] = place.lease
        self._table.want(place.key, wish)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._plan)
        return place

    async def turn(self, place: Place) -> Lease:
        """A slot, as soon as there is one. Give it back with `release`."""
        try:
            return await place.lease
        except asyncio.CancelledError:
            self._forget(place)
            raise

    def saved(self, lease: Lease) -> None:
        """The lease's prompt is in its file now."""
        self._table.saved(lease)
        self._plan()

    def release(self, lease: Lease, held: Tokens) -> None:
        """Give a slot back, which holds these tokens as far as is known."""
        self._table.done(lease, held)
        self._plan()

    def _forget(self, place: Place) -> None:
        self._table.drop(place.key)
        self._waiting.pop(place.key, None)
        if place.lease.done() and not place.lease.cancelled():
            self.release(place.lease.result(), ())

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, lease in self._table.plan():
            future = self._waiting.pop(key)
            if future.cancelled():
                self._table.done(lease, ())
            else:
                future.set_result(lease)
        for name in self._table.discarded():
            (self._folder / name).unlink(missing_ok=True)
