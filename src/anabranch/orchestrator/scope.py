"""Scope: structured concurrency for strategies.

Whatever is started inside `async with run.scope()` and still runs when the block is left is cancelled, on the server
too. An error in a spawned task stops the scope and is raised by it, as itself rather than in a group. Scopes nest;
what is started belongs to the innermost one that is open where it is started, and in a spawned task to the scope that
spawned it.

Invariant: when a scope has been left, nothing that was started in it runs any more, and a cancellation of the task
around it is never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token, copy_context
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLEAN_UP_S = 5.0
"""Seconds that a cancelled task may take to clean up; then it is cancelled again."""

_current: ContextVar[Scope | None] = ContextVar("anabranch_scope", default=None)


class Scope:
    """A block of work that ends as one."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._token: Token[Scope | None] | None = None
        self._outer: Scope | None = None
        self._leaving = False
        self._cancellations = 0

    @classmethod
    def current(cls, owner: object) -> Scope | None:
        """The innermost open scope of this owner in the running task."""
        scope = _current.get()
        while scope is not None and scope._owner is not owner:
            scope = scope._outer
        return scope

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        self._cancellations = task.cancelling() if task is not None else 0
        await self._group.__aenter__()
        self._outer = _current.get()
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self._leaving = True
        self.cancel()
        insist = asyncio.get_running_loop().call_later(CLEAN_UP_S, self._insist)
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if self._cancelled_from_outside():
                raise asyncio.CancelledError from group
            first = _first(group)
            raise first from first.__cause__
        finally:
            insist.cancel()

    def spawn(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Task[T]:
        """Run an async function as a task of this scope; await the task for its result."""
        self._check_open()
        return self.start(function(*args, **kwargs))

    def start(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as a task of this scope."""
        try:
            self._check_open()
        except BaseException:
            coroutine.close()
            raise
        context = copy_context()
        context.run(_current.set, self)
        task = self._group.create_task(coroutine, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Stop all that runs in this scope; the block itself goes on."""
        for task in tuple(self._tasks):
            task.cancel()

    def _check_open(self) -> None:
        """What runs on after its scope was left is ended when it tries to start something."""
        if self._leaving:
            raise asyncio.CancelledError("the scope has been left")

    def _insist(self) -> None:
        """Some clean-up takes too long: interrupt it."""
        self.cancel()
        if self._tasks:
            asyncio.get_running_loop().call_later(CLEAN_UP_S, self._insist)

    def _cancelled_from_outside(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > self._cancellations


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group; the others are noted on it."""
    leaves = _leaves(group)
    first = leaves[0]
    if len(leaves) > 1:
        first.add_note(f"{len(leaves) - 1} more failed beside it, first of them: {leaves[1]!r}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
