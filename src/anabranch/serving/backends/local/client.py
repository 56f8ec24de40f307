"""The engine's HTTP API: one reply, or a stream of events. It knows no calls, slots or branches.

Each request has a connection of its own: the server gives a thread to each connection, also to an idle one, and
closes idle ones without notice. On the same machine a new connection costs a tenth of a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from anabranch.orchestrator.errors import BackendUnavailable, MalformedResponse
from anabranch.serving.backends._http import error_from_body, error_from_object

_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)  # the engine keeps the clocks

Json = Mapping[str, Any]


class Client:
    """Speaks to one server.

    Args:
        obituary: says in one line why the server does not answer.
    """

    def __init__(self, url: str, key: str, obituary: Callable[[], Awaitable[str]]) -> None:
        self._url, self._obituary = url, obituary
        self._headers = {"Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    async def get(self, path: str) -> dict[str, Any]:
        """One reply. Raises BackendError."""
        async with self._open("GET", path, None) as response:
            return _object(await response.read())

    async def post(self, path: str, body: Json) -> dict[str, Any]:
        """One reply. Raises BackendError."""
        async with self._open("POST", path, body) as response:
            return _object(await response.read())

    async def events(self, path: str, body: Json) -> AsyncGenerator[dict[str, Any]]:
        """The events of a streamed reply. Closing it early closes the connection, which stops the server's work.

        Raises:
            BackendError: the server refused, failed in the middle, or died.
        """
        async with self._open("POST", path, body) as response:
            async for line in _lines(response.content):
                if not line.startswith(b"data:"):
                    continue
                event = _object(line[5:])
                if "error" in event:
                    raise error_from_object(event)
                yield event

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Json | None) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with aiohttp.request(
                method, self._url + path, json=body, headers=self._headers, timeout=_NO_TIMEOUT
            ) as response:
                if response.status >= 400:
                    raise error_from_body(response.status, await response.read(), response.headers)
                yield response
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BackendUnavailable(await self._obituary()) from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: the reader's own have a limit, which thousands of alternatives for a token exceed."""
    rest = b""
    async for block in content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise MalformedResponse(f"the embedded engine sent {body[:80]!r} where JSON was due")
    return parsed
