"""A client that costs little: it sends one request over and over, so many at a time, and looks at no more of a reply
than where it ends and whether it is a good one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
PATIENCE_S = 120.0


class BadReply(Exception):
    """A server's reply is not what was asked for."""


def request(port: int, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A request's bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer none\r\n"
        f"user-agent: load\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def length(held: bytes, *, closed: bool = False) -> int | None:
    """The length of the reply that `held` begins with; None while it is not there as a whole."""
    end = held.find(_HEAD_END)
    if end < 0:
        return None
    body = end + len(_HEAD_END)
    if found := _LENGTH.search(held, 0, end + 2):
        whole = body + int(found.group(1))
        return whole if len(held) >= whole else None
    if _CHUNKED.search(held, 0, end + 2):
        return len(held) if held.endswith(_LAST_CHUNK) else None
    return len(held) if closed else None


def check(reply: bytes) -> None:
    """Raise BadReply where this is no whole, successful completion."""
    status = reply.split(b" ", 2)[1] if reply.startswith(b"HTTP/1.") else b""
    good = b'"choices"' in reply and (b"text/event-stream" not in reply or b"data: [DONE]" in reply[-200:])
    if status != b"200" or not good:
        raise BadReply(reply[:600].decode(errors="replace"))


class _Caller(asyncio.Protocol):
    """One connection, which sends the next request when it has the whole reply to the last."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._pieces: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        self._next()

    def data_received(self, data: bytes) -> None:
        """Go on once the reply is whole. Only what ends a chunked reply, or a short one, is worth a look."""
        self._pieces.append(data)
        if len(self._pieces) > 1 and not data.endswith(_LAST_CHUNK) and len(data) > 4096:
            return
        self._look(closed=False)

    def connection_lost(self, error: Exception | None) -> None:
        """A server may close after a reply, or end it so."""
        if self._pieces:
            self._look(closed=True)
        self._transport = None
        self._load.lost(unfinished=bool(self._pieces))

    def _look(self, *, closed: bool) -> None:
        held = b"".join(self._pieces)
        self._pieces = [held]
        if length(held, closed=closed) is None:
            return
        self._pieces = []
        if self._load.took(held):
            assert self._transport is not None
            if closed or _CLOSES.search(held, 0, held.find(_HEAD_END) + 2) or held.startswith(b"HTTP/1.0"):
                self._transport.close()
            else:
                self._next()

    def _next(self) -> None:
        assert self._transport is not None
        if self._load.take():
            self._transport.write(self._load.content)
        else:
            self._transport.close()


class _Load:
    """So many requests, of which so many are under way at a time."""

    def __init__(self, port: int, content: bytes, total: int, inflight: int) -> None:
        self.content, self._port = content, port
        self._left, self._open, self._inflight = total, total, min(inflight, total)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connecting: set[asyncio.Task[Any]] = set()
        self.bytes = 0

    async def run(self) -> None:
        """Send them all. Raises BadReply at the first bad reply."""
        for _ in range(self._inflight):
            self._connect()
        async with asyncio.timeout(PATIENCE_S):
            await self._done

    def take(self) -> bool:
        """Whether there is another one to send."""
        self._left -= 1
        return self._left >= 0

    def took(self, reply: bytes) -> bool:
        """A whole reply came; whether to go on."""
        self.bytes += len(reply)
        self._open -= 1
        try:
            check(reply)
        except BadReply as error:
            self._fail(error)
        if self._open == 0 and not self._done.done():
            self._done.set_result(None)
        return not self._done.done()

    def lost(self, *, unfinished: bool) -> None:
        """A connection was closed."""
        if unfinished:
            self._fail(BadReply("a reply was cut"))
        if self._left > 0 and not self._done.done():
            self._connect()

    def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(partial(_Caller, self), "127.0.0.1", self._port))
        self._connecting.add(task)
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[Any]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def send(port: int, content: bytes, *, total: int, inflight: int) -> int:
    """Send a request so many times; the bytes that came back. Raises BadReply."""
    load = _Load(port, content, total, inflight)
    await load.run()
    return load.bytes
