"""HTTP to one SGLang server: JSON calls and event streams, on one long-lived aiohttp session.

Whatever goes wrong leaves as a `BackendError`. It does not retry, and sets no time limit but for connecting.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp

from anabranch.orchestrator.errors import BackendError, BackendUnavailable, MalformedResponse
from anabranch.serving.backends._http import error_from_body, why_not_reached
from anabranch.serving.backends.endpoint import proxy_for
from anabranch.serving.backends.sse import DONE, Events

CONNECT_S = 10.0
"""Longest wait for a connection, in seconds."""
KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept, in seconds: SGLang closes them after 5."""


class Connection:
    """A server's address, with its session. The session is made at the first use, in the loop that then runs."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> Any:
        """The JSON answer to a GET."""
        async with self._answer("GET", path) as response:
            return await _json(response)

    async def post(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON answer to a POST; None where the server answers with nothing."""
        async with self._answer("POST", path, body, headers) as response:
            return await _json(response)

    async def events(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[bytes]]:
        """The payloads of a stream's events, in batches as they arrive, without the last one, `[DONE]`.

        Closing it early closes the connection; read to its end, the connection is used again.
        """
        async with self._answer("POST", path, body, headers) as response:
            events = Events()
            async for received in response.content.iter_any():
                if payloads := [data for data in events.feed(received) if data != DONE]:
                    yield payloads

    async def aclose(self) -> None:
        """Close the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with self._failures():
            response = await self._opened().request(method, self.url + path, json=body, headers=headers)
            try:
                if response.status >= 400:
                    raise error_from_body(response.status, await response.read(), response.headers)
                yield response
            finally:
                if not response.content.at_eof():
                    response.close()
                response.release()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit on connections: how many calls are in flight is the scheduler's business.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                headers=self._headers,
                proxy=proxy_for(self.url),
                json_serialize=_compact,
            )
        return self._session

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the client library's errors into ours."""
        try:
            yield
        except BackendError:
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            late = isinstance(error, aiohttp.ConnectionTimeoutError)
            reason = "no answer" if late else why_not_reached(error)
            raise BackendUnavailable(
                f"no SGLang server at {self.url} ({reason}); `anabranch launch` starts one"
            ) from error
        except aiohttp.ClientPayloadError as error:
            raise BackendUnavailable(f"the server at {self.url} broke its reply off in the middle") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BackendUnavailable(f"the server at {self.url} broke the connection off: {error}") from error
        except ValueError as error:
            raise MalformedResponse(f"the answer of {self.url} makes no sense: {error}") from error


async def _json(response: aiohttp.ClientResponse) -> Any:
    body = await response.read()
    return json.loads(body) if body else None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
