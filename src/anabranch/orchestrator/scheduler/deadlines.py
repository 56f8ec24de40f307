"""Deadlines of a lane's calls: to the first piece, between pieces, in all, and for closing the stream.

They cost nothing for each piece and next to nothing for each call: a piece writes down the time, and one timer looks
at all calls when the first of them may be late.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from anabranch.orchestrator.errors import BackendTimeout

CLOSING_S = 5.0
"""Seconds that a backend may take to close a stream; then it is interrupted, again and again."""


class Patience(Protocol):
    """The limits that are kept (see `Limits`)."""

    @property
    def first_token_s(self) -> float: ...

    @property
    def idle_s(self) -> float: ...

    @property
    def total_s(self) -> float | None: ...


class Deadlines:
    """Interrupts the calls of one lane that are late."""

    def __init__(self, patience: Patience, name: str) -> None:
        self.patience, self.name = patience, name
        self._calls: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def call(self) -> Deadline:
        """A block of the running task that reads one call's stream."""
        return Deadline(self)

    def enter(self, call: Deadline) -> None:
        """Mind a call."""
        self._calls.add(call)
        self.look_at(call)

    def leave(self, call: Deadline) -> None:
        """Mind a call no more."""
        self._calls.discard(call)  # the timer stays for those who come

    def look_at(self, call: Deadline) -> None:
        """See to it that the timer goes off before this call can be late."""
        loop = asyncio.get_running_loop()
        # a piece may make a call due sooner than it is now, but not sooner than this
        when = min(call.due, loop.time() + self.patience.idle_s)
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            if now >= call.due:
                call.interrupt(now)
        if self._calls:
            self.look_at(min(self._calls, key=lambda call: call.due))


class Deadline:
    """Bounds a block that reads a stream. Raises BackendTimeout, saying which limit was reached."""

    __slots__ = ("_again_at", "_all", "_began", "_cancelling", "_ends_at", "_interruptions", "_task", "last")

    def __init__(self, deadlines: Deadlines) -> None:
        self._all = deadlines
        self._began = asyncio.get_running_loop().time()
        self._ends_at = self._began + (deadlines.patience.total_s or float("inf"))
        self._interruptions, self._again_at = 0, 0.0
        self.last: float | None = None
        """When the last piece came."""

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._all.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._all.leave(self)
        for _ in range(self._interruptions):
            self._task.uncancel()
        ours = self._interruptions > 0 and self._task.cancelling() <= self._cancelling
        if ours and kind is asyncio.CancelledError:
            raise BackendTimeout(self._why(), retryable=self.last is None) from error

    @property
    def due(self) -> float:
        """When it will be late, unless another piece comes."""
        if self._interruptions:
            return self._again_at
        patience = self._all.patience
        due = self._began + patience.first_token_s if self.last is None else self.last + patience.idle_s
        return min(due, self._ends_at)

    def close_soon(self) -> None:
        """All has been read: what is left is closing the stream."""
        self._ends_at = min(self._ends_at, asyncio.get_running_loop().time() + CLOSING_S)
        self._all.look_at(self)

    def interrupt(self, now: float) -> None:
        """Have the stream closed; and again, when closing it takes too long."""
        if self._task.cancel():
            self._interruptions += 1
        self._again_at = now + CLOSING_S

    def _why(self) -> str:
        patience, name = self._all.patience, self._all.name
        if asyncio.get_running_loop().time() >= self._ends_at:
            return f"{name} did not finish within {patience.total_s} s (total_s)"
        if self.last is None:
            return f"no first token from {name} within {patience.first_token_s} s (first_token_s)"
        return f"no further token from {name} within {patience.idle_s} s (idle_s)"
