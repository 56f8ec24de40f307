"""Who goes next, and how many at once: the scheduler's two pure parts. No clock, no tasks.

FairQueue shares slots between runs (fair queueing on virtual time: a run's time grows by one with each slot that it is
given, the queue's by one for each round over the runs that wait; the run that is furthest behind goes next) and orders
a run's own calls by priority, siblings adjacent.

AdaptiveLimit finds how many calls a server takes at once: it doubles while all goes well (slow start), halves when
the server pushes back, then grows by one for each limit's worth of successes (additive increase, multiplicative
decrease, as in TCP: Chiu & Jain 1989; Jacobson 1988). It never falls below one, so it never freezes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    item: T | None


@dataclass(slots=True)
class _RunQueue(Generic[T]):
    virtual_time: float
    heap: list[tuple[float, int, int, _Entry[T]]] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """Waiting calls of all runs. Items are hashable and differ from each other."""

    def __init__(self) -> None:
        self._runs: dict[str, _RunQueue[T]] = {}
        self._order: list[tuple[float, int, str]] = []
        self._entries: dict[T, _Entry[T]] = {}
        self._clock = 0.0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: T, *, run: str, priority: float = 0.0, group: str = "") -> None:
        """Queue an item. Higher priority goes first within its run; a group keeps together where priorities tie."""
        self._sequence += 1
        queue = self._runs.get(run)
        if queue is None:
            queue = self._runs[run] = _RunQueue(virtual_time=self._clock)
            heapq.heappush(self._order, (queue.virtual_time, self._sequence, run))
        rank = queue.groups.setdefault(group, self._sequence) if group else self._sequence
        entry = self._entries[item] = _Entry(item)
        heapq.heappush(queue.heap, (-priority, rank, self._sequence, entry))

    def remove(self, item: T) -> None:
        """Take an item out of its place, if it is still there."""
        entry = self._entries.pop(item, None)
        if entry is not None:
            entry.item = None

    def pop(self) -> T:
        """Take the next item. Raises IndexError when there is none."""
        while True:
            virtual_time, _, run = heapq.heappop(self._order)
            queue = self._runs[run]
            item = self._first(queue)
            if item is not None:
                self._clock = max(virtual_time, self._clock + 1.0 / len(self._runs))
                queue.virtual_time = virtual_time + 1.0
            if queue.heap:
                self._sequence += 1
                heapq.heappush(self._order, (queue.virtual_time, self._sequence, run))
            else:
                del self._runs[run]
            if item is not None:
                del self._entries[item]
                return item

    def _first(self, queue: _RunQueue[T]) -> T | None:
        """The first item of a run that was not removed."""
        while queue.heap:
            entry = heapq.heappop(queue.heap)[-1]
            if entry.item is not None:
                return entry.item
        return None


class AdaptiveLimit:
    """How many calls may be in flight."""

    def __init__(self, *, start: int, most: int) -> None:
        self.most = max(1, most)
        self._value = float(min(max(1, start), self.most))
        self._slow_start = True
        self._cut_at = float("-inf")

    @property
    def value(self) -> int:
        """The limit at present, at least 1."""
        return int(self._value)

    def cap(self, most: int) -> None:
        """Learn what the server can take at most."""
        self.most = max(1, most)
        self._value = min(self._value, float(self.most))

    def succeeded(self, *, in_flight: int, queued: bool = False) -> None:
        """A call went well. No growth while the limit is not what holds calls back, or while the server queues."""
        if queued:
            self._slow_start = False
        elif in_flight >= self.value:
            step = 1.0 if self._slow_start else 1.0 / self._value
            self._value = min(float(self.most), self._value + step)

    def overloaded(self, *, started_at: float, now: float) -> None:
        """A call was turned away. Calls that set out before the last cut do not cut again."""
        if started_at >= self._cut_at:
            self._value = max(1.0, self._value / 2)
            self._slow_start = False
            self._cut_at = now
