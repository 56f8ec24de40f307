"""Things that grow: a Feed for any number of readers, each from the first item on, and a TextBuffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """Items in order; a reader that is ahead of the writer waits. Readers see the error that ended it, if one did."""

    __slots__ = ("_at_end", "_readers", "closed", "error", "items")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.closed = False
        self.error: BaseException | None = None
        # lists when there is something to hold: there are very many feeds
        self._readers: list[asyncio.Future[None]] | None = None
        self._at_end: list[Callable[[], None]] | None = None

    def append(self, item: T) -> None:
        """Add an item and wake the readers."""
        self.items.append(item)
        if self._readers:
            _wake(self._readers)

    def close(self, error: BaseException | None = None) -> None:
        """End it, once."""
        if self.closed:
            return
        self.closed, self.error = True, error
        if self._readers:
            _wake(self._readers)
        callbacks, self._at_end = self._at_end, None
        for callback in callbacks or ():
            callback()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once it has ended; at once if it has."""
        if self.closed:
            callback()
        elif self._at_end is None:
            self._at_end = [callback]
        else:
            self._at_end.append(callback)

    async def ended(self) -> None:
        """Wait for the end, whatever it is."""
        if not self.closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_closed(lambda: None if future.done() else future.set_result(None))
            await future

    async def __aiter__(self) -> AsyncIterator[T]:
        index = 0
        while True:
            while index < len(self.items):
                yield self.items[index]
                index += 1
            if self.closed:
                break
            if self._readers is None:
                self._readers = []
            await _turn(self._readers)
        if self.error is not None:
            raise self.error


class TextBuffer:
    """Text that grows by pieces. Reading it joins them once, not at each reading."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Add a piece."""
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        """All of it so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


async def _turn(waiters: list[asyncio.Future[None]]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(future)
    try:
        await future
    finally:
        if future in waiters:
            waiters.remove(future)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for future in waiters:
        if not future.done():
            future.set_result(None)
    waiters.clear()
