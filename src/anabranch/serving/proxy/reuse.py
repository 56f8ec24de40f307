"""Whether a request went out on a connection that had been kept open: only then may a hang-up mean that nobody read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(slots=True)
class Way:
    """How a request went out; `reused` is noted by the session: see `noting_reuse`."""

    reused: bool = False


def noting_reuse() -> aiohttp.TraceConfig:
    """For a session: notes in each request's `Way` that it goes out on a connection that was kept open."""

    async def note(session: aiohttp.ClientSession, context: Any, what: object) -> None:
        context.trace_request_ctx.reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config
