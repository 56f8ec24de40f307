"""Whether a request went out on a connection that had been kept open: only then may a hang-up mean that nobody read it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(slots=True)
class Way:
    """How a request went out; `reused` until the connector has to make a connection for it."""

    reused: bool = True


way_out: ContextVar[Way] = ContextVar("way_out")
"""The way of the request that this task sends: see `NotingConnector`."""


class NotingConnector(aiohttp.TCPConnector):
    """Notes in each request's `Way` that a connection was made for it.

    aiohttp's own means, a trace, costs a tenth of all that a request does here.
    """

    async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:
        way_out.get(Way()).reused = False
        return await super()._create_connection(*args, **kwargs)
