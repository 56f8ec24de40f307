"""Leaders: one call of each fork goes ahead, where siblings would otherwise all compute their common prefix."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anabranch.orchestrator.backend import PrefixSharing

REMEMBERED = 1024
"""Forks whose prefix is known to be in the server's cache."""


class Gate:
    """Opens at the leader's first piece. `warm` tells whether there was one."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self.warm = False

    def open(self) -> None:
        """The prefix is in the cache."""
        self.warm = True
        self._moved.set()

    def give_up(self) -> None:
        """The leader ended without a piece: let another one lead."""
        self._moved.set()

    async def wait(self) -> None:
        """Wait until the leader has got somewhere, or nowhere."""
        await self._moved.wait()


class Leaders:
    """Who leads which fork."""

    def __init__(self) -> None:
        self._gates: OrderedDict[str, Gate] = OrderedDict()

    @asynccontextmanager
    async def turn(self, group: str, sharing: PrefixSharing) -> AsyncIterator[Gate | None]:
        """Wait for the leader's first piece; whoever leads gets the gate to open at its own."""
        if sharing is not PrefixSharing.LEADER or not group:
            yield None
            return
        while (gate := self._gates.get(group)) is not None and not gate.warm:
            await gate.wait()
            if not gate.warm and self._gates.get(group) is gate:
                del self._gates[group]
        if gate is not None:
            yield None
            return
        async with self._leading(group) as own:
            yield own

    @asynccontextmanager
    async def _leading(self, group: str) -> AsyncIterator[Gate]:
        gate = self._gates[group] = Gate()
        if len(self._gates) > REMEMBERED:
            self._gates.popitem(last=False)[1].give_up()
        try:
            yield gate
        finally:
            gate.give_up()
