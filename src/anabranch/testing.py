"""For tests, yours and ours: a scripted backend, and an event loop whose clock costs no time.

def test_two_branches_overlap() -> None:
    async def scenario() -> None:
        backend = ScriptedBackend([Reply.of("one", delay_s=5), Reply.of("two", delay_s=5)])
        async with Orchestrator(backend) as orch:
            ...

    run_virtual(scenario())
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from anabranch.serving.backends.scripted import CallLog, Reply, ScriptedBackend

__all__ = ["CallLog", "Reply", "ScriptedBackend", "VirtualClockLoop", "run_virtual"]

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Does not wait for a time-out: moves the clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time; only for code that talks to nothing outside the process."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds on the virtual clock, from 0."""
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock. The request-rate limiter's clock is the same one."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        clock = SimpleNamespace(monotonic=loop.time)
        with mock.patch("asyncio_throttle.throttler.time", clock):
            return runner.run(main)
