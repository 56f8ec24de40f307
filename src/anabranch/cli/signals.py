"""Ending on a signal: the run is cancelled, so that the servers stop too, and then the program ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anabranch.cli.errors import Terminated


@asynccontextmanager
async def stopped_by_signals() -> AsyncIterator[None]:
    """Cancel the running task on SIGTERM and SIGHUP; asyncio itself does so on Ctrl-C.

    Raises:
        Terminated: such a signal came, and all has been cleaned up.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    arrived: list[int] = []

    def stop(number: int) -> None:
        arrived.append(number)
        task.cancel()

    signals = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    try:
        for number in signals:
            loop.add_signal_handler(number, stop, number)
    except (NotImplementedError, RuntimeError, ValueError):
        signals = []  # not on this system, or not in the main thread
    try:
        yield
    except asyncio.CancelledError:
        if not arrived:
            raise
        raise Terminated from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
