"""Scope: structured concurrency for strategies.

Whatever is started inside `async with run.scope()` and still runs when the block is left is cancelled, on the server
too. An error in a spawned task stops the scope and is raised by it, as itself rather than in a group. Scopes nest;
what is started belongs to the innermost one that is open in the task that starts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_current: ContextVar[Scope | None] = ContextVar("anabranch_scope", default=None)


class Scope:
    """A block of work that ends as one."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._token: Token[Scope | None] | None = None
        self.closed = False

    @classmethod
    def current(cls, owner: object) -> Scope | None:
        """The innermost open scope of this owner in the running task."""
        scope = _current.get()
        return scope if scope is not None and scope._owner is owner and not scope.closed else None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self.cancel()
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            self.closed = True

    def spawn(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Task[T]:
        """Run an async function as a task of this scope; await the task for its result."""
        return self.start(function(*args, **kwargs))

    def start(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as a task of this scope."""
        task = self._group.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Stop all that runs in this scope; the block itself goes on."""
        for task in tuple(self._tasks):
            task.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group; the others are noted on it."""
    leaves = list(_leaves(group))
    first = leaves[0]
    if len(leaves) > 1:
        first.add_note(f"{len(leaves) - 1} more failed beside it, first of them: {leaves[1]!r}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
