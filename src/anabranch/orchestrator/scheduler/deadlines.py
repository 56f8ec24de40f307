"""Deadlines of one call: to its first piece, between pieces, in all, and for closing it.

They cost nothing for each piece: a piece writes down the time, and one timer looks at it now and then.
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
    """Bounds a block that reads a stream. Raises BackendTimeout, saying which limit was reached."""

    def __init__(self, patience: Patience, name: str) -> None:
        self._patience, self._name = patience, name
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._began = self._loop.time()
        self._ends_at = self._began + (patience.total_s or float("inf"))
        self._interruptions = 0
        self.last: float | None = None
        """When the last piece came."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        await self._timeout.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._task is not None:
            for _ in range(self._interruptions):
                self._task.uncancel()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise BackendTimeout(self._why(), retryable=self.last is None) from error

    def close_soon(self) -> None:
        """All has been read: what is left is closing the stream."""
        self._ends_at = min(self._ends_at, self._loop.time() + CLOSING_S)
        self._timer.cancel()
        self._check()

    def _check(self) -> None:
        now, patience = self._loop.time(), self._patience
        due = self._began + patience.first_token_s if self.last is None else self.last + patience.idle_s
        due = min(due, self._ends_at)
        if now >= due:
            self._timeout.reschedule(now)
            self._timer = self._loop.call_later(CLOSING_S, self._interrupt)
        else:
            self._timer = self._loop.call_at(min(due, now + patience.idle_s), self._check)

    def _interrupt(self) -> None:
        """The stream was told to close, and has not: tell it again."""
        if self._task is not None and self._task.cancel():
            self._interruptions += 1
            self._timer = self._loop.call_later(CLOSING_S, self._interrupt)

    def _why(self) -> str:
        patience = self._patience
        if self._loop.time() >= self._ends_at:
            return f"{self._name} did not finish within {patience.total_s} s (total_s)"
        if self.last is None:
            return f"no first token from {self._name} within {patience.first_token_s} s (first_token_s)"
        return f"no further token from {self._name} within {patience.idle_s} s (idle_s)"
