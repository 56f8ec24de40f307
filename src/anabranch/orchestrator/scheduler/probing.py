"""Probing: asking a backend what it can do, once for all who want to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.orchestrator.backend import Backend, Capabilities
from anabranch.orchestrator.errors import BackendError, BackendTimeout
from anabranch.orchestrator.scheduler.retrying import RetryPolicy

PROBE_S = 600.0
"""Seconds that a backend may take to say what it can do: the embedded one fetches and loads its model in that time."""
REMEMBERED_S = 1.0
"""Seconds for which a failure answers for all who ask, rather than one after the other."""


class Probe:
    """What a backend can do. Retried like a call, within a time limit; a failure is shared by all who wait."""

    def __init__(self, backend: Backend, retry: RetryPolicy, found: Callable[[Capabilities], None]) -> None:
        self._backend, self._retry, self._found = backend, retry, found
        self._turn = asyncio.Lock()
        self._done = False
        self._failed: tuple[float, BackendError] | None = None

    async def __call__(self) -> Capabilities:
        """What it can do, as far as is known by now: a backend may learn from its server's refusals."""
        if not self._done:
            async with self._turn:
                if not self._done:
                    await self._first()
        return await self._backend.probe()

    async def _first(self) -> None:
        now = asyncio.get_running_loop().time
        if self._failed is not None and now() - self._failed[0] < REMEMBERED_S:
            raise self._failed[1]
        try:
            async for attempt in self._retry.loop(wrote=lambda: False, retrying=lambda *_: None):
                with attempt:
                    self._found(await self._ask())
        except BackendError as error:
            self._failed = (now(), error)
            raise
        self._done = True

    async def _ask(self) -> Capabilities:
        try:
            async with asyncio.timeout(PROBE_S):
                return await self._backend.probe()
        except TimeoutError as error:
            raise BackendTimeout(
                f"{self._backend.name} did not say what it can do within {PROBE_S:g} s"
            ) from error
