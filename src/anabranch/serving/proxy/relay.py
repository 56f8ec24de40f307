"""Relay: requests that pass through to the model server's own API, byte for byte.

What succeeds goes back as it came: status, headers that matter, body, and the pieces of a stream as they arrive. What
does not succeed goes back in OpenAI's envelope. Credentials go only to the one address that the proxy was given.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
from starlette.types import Send
from yarl import URL

from anabranch.orchestrator.errors import BackendTimeout, BackendUnavailable
from anabranch.serving.backends._http import error_from_body
from anabranch.serving.backends.endpoint import Endpoint, proxy_for
from anabranch.serving.proxy.errors import ProxyError, of_backend, well_formed
from anabranch.serving.proxy.reuse import Way, way_out
from anabranch.serving.proxy.sse import error_event
from anabranch.serving.proxy.watching import StreamWatcher, error_at_once, error_in_body, only_comments

log = logging.getLogger(__name__)

_MEBIBYTE = 2**20
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_NOT_UPSTREAM = _HOP_BY_HOP | frozenset(
    b"host content-length authorization api-key x-api-key cookie accept-encoding expect x-forwarded-for".split()
)
_NOT_BACK = _HOP_BY_HOP | frozenset(b"date server set-cookie".split())
_OURS = b"x-anabranch-"
_AUTOMATIC = frozenset({"accept", "user-agent", "content-type"})
"""What aiohttp adds unless it is told not to."""
_LISTS = {"/chat/completions": "choices", "/completions": "choices", "/embeddings": "data"}
"""What a successful reply to these must have something of."""

T = TypeVar("T")
RawHeaders = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A request on its way through.

    Attributes:
        path: below the API's base, with its query.
        headers: as they came.
        extra: headers for the reply, beside the server's own.
    """

    method: str
    path: str
    headers: RawHeaders
    body: bytes
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def wants(self) -> str | None:
        """The field that a successful reply must have."""
        return _LISTS.get(self.path.partition("?")[0])

    @property
    def checked(self) -> bool:
        """Whether the reply is one whose shape is known."""
        return self.wants is not None or self.path.startswith("/responses")


class Relay:
    """The way to one model server's own API. Belongs to one event loop.

    Args:
        session: shared by all relays; without a limit on connections, without decompression.
        forward_client_key: the client's own bearer token goes upstream, ours does not.
    """

    def __init__(
        self, endpoint: Endpoint, session: aiohttp.ClientSession, *, forward_client_key: bool = False
    ) -> None:
        self.endpoint, self._session = endpoint, session
        self._forward_client_key = forward_client_key
        # Not left to aiohttp's `trust_env`, which also reads ~/.netrc at each request, in a thread, and sends what it finds.
        self._proxy = proxy_for(endpoint.url)

    async def get_json(self, path: str) -> dict[str, Any]:
        """A small JSON object of the server's. Raises ProxyError."""
        passing = Passing(method="GET", path=path, headers=[], body=b"")
        parsed: dict[str, Any] = json.loads(await self._with_reply(passing, _whole))
        return parsed

    async def serve(self, passing: Passing, send: Send) -> ProxyError | None:
        """Pass a request on, and the reply back; gives the error that ended a stream in the middle.

        Raises:
            ProxyError: it failed before the first byte of the reply.
        """

        async def hand_back(reply: aiohttp.ClientResponse) -> ProxyError | None:
            if reply.content_type == "text/event-stream":
                return await self._stream(passing, reply, send)
            await (_checked if passing.checked else _unchecked)(passing, reply, send)
            return None

        return await self._with_reply(passing, hand_back)

    async def _with_reply(self, passing: Passing, read: Callable[[aiohttp.ClientResponse], Awaitable[T]]) -> T:
        """Read the reply, once its status is known to be a good one."""
        try:
            reply = await self._ask(passing)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(error) from error
        try:
            if reply.status >= 400:
                raise await _refusal(reply)
            return await read(reply)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failure(error) from error
        finally:
            # At an early end this drops the connection, at which servers stop working on the request.
            reply.close()

    async def _ask(self, passing: Passing) -> aiohttp.ClientResponse:
        way = Way()
        way_out.set(way)
        try:
            return await self._send(passing)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not way.reused:
                raise
            # A connection that was kept open had just been closed by the server: nothing of the request was read.
            log.debug("sending again, since %r", error)
            return await self._send(passing)

    async def _send(self, passing: Passing) -> aiohttp.ClientResponse:
        dropped = _NOT_UPSTREAM | _named_by_connection(passing.headers)
        headers = [
            (name.decode("latin-1"), _text(value))
            for name, value in passing.headers
            if name not in dropped and not name.startswith(_OURS)
        ]
        if (authorization := self._authorization(passing.headers)) is not None:
            headers.append(("authorization", authorization))
        headers.append(("accept-encoding", "identity"))
        missing = _AUTOMATIC.difference(name for name, _ in headers)
        return await self._session.request(
            passing.method,
            URL(self.endpoint.url + passing.path, encoded=True),
            data=_payload(passing.body),
            headers=headers,
            skip_auto_headers=missing or None,
            allow_redirects=False,
            proxy=self._proxy,
        )

    def _authorization(self, headers: RawHeaders) -> str | None:
        if self._forward_client_key:
            given = [value for name, value in headers if name == b"authorization"]
            return _text(given[0]) if given else None
        return f"Bearer {self.endpoint.api_key}" if self.endpoint.api_key else None

    def _failure(self, error: BaseException) -> ProxyError:
        where = f"the model server at {self.endpoint.url}"
        if isinstance(error, TimeoutError):
            return of_backend(BackendTimeout(f"{where} did not answer in time"))
        if isinstance(error, aiohttp.ClientConnectorError):
            return of_backend(BackendUnavailable(f"{where} is not reachable: {error.os_error}"))
        return of_backend(BackendUnavailable(f"{where} broke the connection off"))

    async def _stream(self, passing: Passing, reply: aiohttp.ClientResponse, send: Send) -> ProxyError | None:
        """The events as they come; at a bad end one more, with the error."""
        watcher = StreamWatcher()
        async with aclosing(self._events(reply, watcher)) as events:
            head = await _head(events)
            if passing.checked and (error := error_at_once(head)) is not None:
                raise of_backend(error)
            await send(
                {"type": "http.response.start", "status": reply.status, "headers": _back(reply, passing)}
            )
            await send({"type": "http.response.body", "body": head, "more_body": True})
            problem: ProxyError | None = None
            try:
                async for whole in events:
                    await send({"type": "http.response.body", "body": whole, "more_body": True})
            except ProxyError as error:
                problem = error
        problem = problem or self._bad_end(passing, watcher)
        last = error_event(problem) if problem is not None and not watcher.failed else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return problem

    async def _events(self, reply: aiohttp.ClientResponse, watcher: StreamWatcher) -> AsyncGenerator[bytes]:
        """Whole events, as many at a time as came together."""
        try:
            async for chunk in reply.content.iter_any():
                if whole := watcher.feed(chunk):
                    yield whole
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failure(error) from error
        if rest := watcher.finish():
            yield rest

    def _bad_end(self, passing: Passing, watcher: StreamWatcher) -> ProxyError | None:
        """What is wrong with a stream that came to its end without breaking off."""
        if watcher.broken is not None:
            return ProxyError(status=502, message=watcher.broken)
        if passing.wants == "choices" and not watcher.done:
            return ProxyError(status=502, message=f"the stream of {self.endpoint.url} ended in the middle")
        return None


async def _head(events: AsyncGenerator[bytes]) -> bytes:
    """The first event, with the comments before it."""
    head = b""
    async for whole in events:
        head += whole
        if not only_comments(head):
            break
    return head


async def _checked(passing: Passing, reply: aiohttp.ClientResponse, send: Send) -> None:
    """A whole reply, once it is seen to be a valid one."""
    body = await _whole(reply)
    if (
        passing.method == "POST"
        and "content-encoding" not in reply.headers
        and (error := error_in_body(body, wants=passing.wants)) is not None
    ):
        raise of_backend(error)
    headers = [pair for pair in _back(reply, passing) if pair[0] != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _unchecked(passing: Passing, reply: aiohttp.ClientResponse, send: Send) -> None:
    """A reply of any kind, as it comes; where it is cut, so is ours."""
    await send({"type": "http.response.start", "status": reply.status, "headers": _back(reply, passing)})
    async for chunk in reply.content.iter_any():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refusal(reply: aiohttp.ClientResponse) -> ProxyError:
    """What a reply with an error status says: in its own words where these are well formed."""
    body = b""
    try:
        async for chunk in reply.content.iter_any():
            body += chunk
            if len(body) > _MEBIBYTE:
                break
    except (TimeoutError, aiohttp.ClientError) as error:
        log.debug("an error reply was cut: %r", error)
    said = error_from_body(reply.status, body, reply.headers)
    problem = of_backend(said)
    if said.body is not None and well_formed(said.body):
        problem.status = reply.status
    return problem


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    return await reply.read()


def _payload(body: bytes) -> bytes | BytesIO | None:
    """What aiohttp is given; a long body as a file, which it sends in pieces."""
    return BytesIO(body) if len(body) > _MEBIBYTE else body or None


def _text(value: bytes) -> str:
    """A header's value so that aiohttp, which writes UTF-8, sends the same bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    """Further headers that concern this connection only (RFC 9110, section 7.6.1)."""
    named = [value for name, value in headers if name == b"connection"]
    return frozenset(each.strip().lower() for value in named for each in value.split(b","))


def _back(reply: aiohttp.ClientResponse, passing: Passing) -> RawHeaders:
    """The headers that go back to the client."""
    headers = [
        (name.lower(), value)
        for name, value in reply.raw_headers
        if name.lower() not in _NOT_BACK and not name.lower().startswith(_OURS)
    ]
    return headers + [
        (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in passing.extra.items()
    ]
