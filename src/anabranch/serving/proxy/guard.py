"""Guard: what happens to every request, whatever it asks for.

Outermost, and pure ASGI, since Starlette's own middleware hides from an endpoint that its client has gone. In this
order: a request id, the API key, a place among the requests under way, the body up to its limit, then the endpoint;
and whatever goes wrong becomes a reply in OpenAI's envelope.

Invariant: when the client goes away the endpoint's task is cancelled, at once and whatever it waits for; every request
ends with one `request_ended`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from random import getrandbits
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.orchestrator.errors import AnabranchError
from anabranch.serving.proxy.errors import ProxyError, of_exception
from anabranch.serving.proxy.requests import Observer, RequestInfo
from anabranch.serving.proxy.settings import Settings, digest
from anabranch.serving.proxy.sse import json_bytes

log = logging.getLogger(__name__)

GONE = 499
"""Status in the log of a request whose client went away."""
_OPEN = ("/health", "/ready", "/version", "/metrics", "/openapi.json", "/ui")
"""Paths that want no key and no place."""
_OWN = "/v1/anabranch/"
"""Below it are the proxy's own pages, which are to be had when it is full, too."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, settings: Settings, observers: Sequence[Observer]) -> None:
        self._app, self._settings, self._observers = app, settings, observers
        self.admission = Admission(settings.max_inflight, settings.max_queued)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request; other kinds of connection go to the application as they are."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["app"] = self  # With it Starlette raises its 405s, which then get the envelope.
        reply = Reply(scope, send)
        for observer in self._observers:
            observer.request_began(reply.info)
        try:
            await self._serve(scope, receive, reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            await self._fail(error, reply)
        except asyncio.CancelledError:
            reply.info.status = reply.info.status or 503
            reply.info.error_code = "shutdown"
            raise
        finally:
            reply.info.wall_s = time.perf_counter() - reply.began
            for observer in self._observers:
                observer.request_ended(reply.info)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        path = scope["path"]
        if path.startswith(_OPEN):
            await self._app(scope, receive, reply.send)
            return
        reply.info.owner = self._authenticated(reply.headers)
        async with nullcontext() if path.startswith(_OWN) else self.admission:
            body = await read_body(receive, reply.headers, self._settings.max_body)
            if body is None:
                reply.info.status = GONE
                return
            await self._until_gone(scope, body, receive, reply)

    async def _until_gone(self, scope: Scope, body: bytes, receive: Receive, reply: Reply) -> None:
        """Run the endpoint until it is done, or its client has gone."""
        task = asyncio.current_task()
        assert task is not None
        gone = asyncio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if not reply.complete:
                gone.set()
                task.cancel()

        async def replay() -> Message:
            if scope["state"].pop("unread", False):
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        scope["state"].update(unread=True, body=body)
        watcher = asyncio.create_task(watch())
        try:
            await self._app(scope, replay, reply.send)
        except asyncio.CancelledError:
            if not gone.is_set() or task.uncancel() > 0:
                raise
            reply.info.status = GONE
        finally:
            watcher.cancel()

    def _authenticated(self, headers: Mapping[bytes, bytes]) -> str:
        """The digest of the key that came with a request. Raises ProxyError where it is none of ours."""
        keys = self._settings.api_keys
        if not keys:
            return ""
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        given = digest(key.strip()) if scheme.lower() == "bearer" else ""
        # All are compared, and each in constant time, so that time tells nothing about them.
        known = [hmac.compare_digest(given, each) for each in keys]
        if not any(known):
            raise ProxyError(
                status=401,
                message="this proxy wants an API key of its own: Authorization: Bearer KEY",
                headers={"www-authenticate": "Bearer"},
            )
        return given

    async def _fail(self, error: Exception, reply: Reply) -> None:
        """Tell the client; where the reply has begun, all that is left is to break it off."""
        if isinstance(error, HTTPException):
            error = ProxyError(status=error.status_code, message=error.detail, headers=error.headers or {})
        if not isinstance(error, ProxyError | AnabranchError):
            log.exception("request %s failed", reply.info.request_id, exc_info=error)
        problem = of_exception(error)
        reply.info.error_code = problem.envelope()["error"].get("code") or ""
        if reply.info.status:
            log.warning("request %s was broken off: %s", reply.info.request_id, problem)
            raise error
        await send_json(reply.send, problem.status, problem.envelope(), problem.reply_headers())


class Reply:
    """The reply to a request as it goes out: notes status and time, and puts the request id on it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(reversed(scope["headers"]))
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.info = RequestInfo(
            request_id=given if _REQUEST_ID.fullmatch(given) else f"req_{getrandbits(128):032x}",
            method=scope["method"],
            path=scope["path"],
            traceparent=self.headers.get(b"traceparent", b"").decode("latin-1"),
            started_at=time.time(),
        )
        self.began = time.perf_counter()
        self.complete = False
        self._send = send
        scope.setdefault("state", {})["anabranch"] = self.info

    async def send(self, message: Message) -> None:
        """Send a message of the application's."""
        if message["type"] == "http.response.start":
            self.info.status = message["status"]
            self.info.first_byte_s = time.perf_counter() - self.began
            headers = [pair for pair in message.get("headers", ()) if pair[0] != b"x-request-id"]
            headers.append((b"x-request-id", self.info.request_id.encode()))
            message = {**message, "headers": headers}
        elif not message.get("more_body", False):
            self.complete = True
        await self._send(message)


class Admission:
    """Places for requests under way, handed out in the order in which they came."""

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most, self._most_waiting = most, most_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    async def __aenter__(self) -> None:
        """Wait for a place, and hold it for the length of a block. Raises ProxyError where too many wait already."""
        if self.taken < self._most:
            self.taken += 1
        else:
            await self._wait()

    async def __aexit__(self, *error: object) -> None:
        """Hand it on."""
        self._hand_on()

    async def _wait(self) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise ProxyError(
                status=503,
                message=f"{self._most} requests are under way and {len(self._waiting)} wait; come back later",
                code="queue_full",
                retry_after=1,
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._hand_on()
            else:
                self._waiting.remove(place)
            raise

    def _hand_on(self) -> None:
        """A place is free: it goes to whoever waits for longest, or back."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.taken -= 1


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], most: int) -> bytes | None:
    """The whole body; None when the client went away before its end. Raises ProxyError where it is too long."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > most:
        raise _too_long(most)
    pieces, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        length += len(piece)
        if length > most:
            raise _too_long(most)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def send_json(send: Send, status: int, body: Any, headers: dict[str, str]) -> None:
    """Send a whole reply."""
    await send_body(send, status, json_bytes(body), "application/json", headers)


async def send_body(
    send: Send, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole reply, of whatever type."""
    raw = [
        (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()
    ]
    raw += [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _too_long(most: int) -> ProxyError:
    # What is left of the body is not read: the connection cannot be used again.
    return ProxyError(
        status=413, message=f"the body has more than {most} bytes", headers={"connection": "close"}
    )
