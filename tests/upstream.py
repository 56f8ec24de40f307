"""A model server for tests that does what each test tells it to: well, badly, slowly, or not at all.

A real TCP server that writes its own bytes, so that it can also send what no HTTP library would. It keeps every
request as it came, and notes when a client goes away before it has its whole answer. What it says is in
`upstream_replies`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Headers = list[tuple[str, str]]


@dataclass(kw_only=True, eq=False)
class Request:
    """A request as it came, and what became of it. Times are of `time.monotonic`.

    Attributes:
        target: path and query as they stand in the request line.
        headers: in their order, spelled as they came.
        gone: when the client went away before the end of the reply.
        ended: when the server was done with it, in whichever way.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    began: float = field(default_factory=time.monotonic)
    gone: float | None = None
    ended: float | None = None

    @property
    def path(self) -> str:
        """Without the query."""
        return self.target.partition("?")[0]

    @property
    def json(self) -> dict[str, Any]:
        """The body, read."""
        parsed = json.loads(self.body or b"{}")
        return parsed if isinstance(parsed, dict) else {}

    def header(self, name: str) -> str | None:
        """A header's value, whatever the case of its name; None where there is none."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Reply:
    """The way back to a client.

    Attributes:
        bytewise: each byte goes out by itself.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._chunked = False
        self.bytewise = False
        self.begun = self.complete = False

    async def head(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None = None) -> None:
        """Status line and headers; without a length the body goes in chunks."""
        self.begun, self._chunked = True, length is None
        framing = ("transfer-encoding", "chunked") if length is None else ("content-length", str(length))
        lines = [f"{name}: {value}\r\n" for name, value in (*headers, framing)]
        await self.raw(f"HTTP/1.1 {status} Whatever\r\n{''.join(lines)}\r\n".encode("latin-1"))

    async def send(self, data: bytes) -> None:
        """A piece of the body."""
        for piece in (data[at : at + 1] for at in range(len(data))) if self.bytewise else (data,):
            await self.raw(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
            await asyncio.sleep(0)

    async def end(self) -> None:
        """The end of the reply."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")
        self.complete = True

    async def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    def cut(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()


Behaviour = Callable[[Request, Reply], Awaitable[None]]
"""What the server does with a request."""


class Upstream:
    """The server. Use as an async context manager.

    Attributes:
        answer: what it does with requests other than those for the list of models.
        models: what it does with those.
        requests: all that came, but for those for the list of models.
        listings: those.
        keep_alive: whether a connection serves more than one request.
    """

    def __init__(self, answer: Behaviour, models: Behaviour) -> None:
        self.answer, self.models = answer, models
        self.requests: list[Request] = []
        self.listings: list[Request] = []
        self.keep_alive = True
        self.most_inflight = 0
        self.broken: list[BaseException] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The base of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def inflight(self) -> list[Request]:
        """Requests that it works on."""
        return [request for request in self.requests if request.ended is None]

    @property
    def left(self) -> list[Request]:
        """Requests whose clients went away early."""
        return [request for request in self.requests if request.gone is not None]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of all requests."""
        return [request.json for request in self.requests]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
        if error is None and self.broken:
            raise self.broken[0]

    async def stop(self) -> None:
        """Stop listening, and break off all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def quiet(self, within_s: float = 5.0) -> None:
        """Wait until it works on nothing. Raises AssertionError when that takes too long."""
        await until(lambda: not self.inflight, within_s, lambda: f"still runs: {self.inflight}")

    async def asked(self, times: int, within_s: float = 5.0) -> None:
        """Wait until so many requests have come in all."""
        await until(lambda: len(self.requests) >= times, within_s, lambda: f"came: {len(self.requests)}")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(_Incoming(reader), writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _converse(self, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        while (request := await incoming.request()) is not None:
            listing = request.method == "GET" and request.path.endswith("/models")
            (self.listings if listing else self.requests).append(request)
            self.most_inflight = max(self.most_inflight, len(self.inflight))
            reply = Reply(writer)
            try:
                await self._serve(request, reply, self.models if listing else self.answer, incoming)
            finally:
                request.ended = time.monotonic()
            if not (reply.complete and self.keep_alive):
                return

    async def _serve(self, request: Request, reply: Reply, behave: Behaviour, incoming: _Incoming) -> None:
        """Let the behaviour run until it is done, or the client has gone."""

        async def work() -> None:
            await behave(request, reply)

        working, watching = asyncio.create_task(work()), asyncio.create_task(incoming.until_gone())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                request.gone = time.monotonic()
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.wait((working, watching))
        if not working.cancelled() and (error := working.exception()) is not None:
            if isinstance(error, ConnectionError):
                request.gone = request.gone or time.monotonic()
            else:
                self.broken.append(error)


class _Incoming:
    """What comes in on a connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._held = reader, b""

    async def request(self) -> Request | None:
        """The next request; None when there is none any more."""
        while b"\r\n\r\n" not in self._held:
            if not await self._more():
                return None
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in rest)]
        request = Request(method=method, target=target, headers=headers, body=b"")
        if "chunked" in (request.header("transfer-encoding") or ""):
            request.body = await self._chunks()
        else:
            request.body = await self._exactly(int(request.header("content-length") or 0))
        return request

    async def until_gone(self) -> None:
        """Wait until the client closes the connection."""
        with suppress(ConnectionError):
            while await self._more():
                pass

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._held:
                await self._need_more()
            size, _, self._held = self._held.partition(b"\r\n")
            piece = await self._exactly(int(size, 16) + 2)
            if piece == b"\r\n":
                return body
            body += piece[:-2]

    async def _exactly(self, length: int) -> bytes:
        while len(self._held) < length:
            await self._need_more()
        taken, self._held = self._held[:length], self._held[length:]
        return taken

    async def _need_more(self) -> None:
        if not await self._more():
            raise ConnectionResetError("the client went away in the middle of its request")

    async def _more(self) -> bool:
        piece = await self._reader.read(2**18)
        self._held += piece
        return bool(piece)


async def until(
    true: Callable[[], bool], within_s: float = 5.0, why: Callable[[], str] = lambda: "it did not become true"
) -> None:
    """Wait until something is true. Raises AssertionError, with the reason, when that takes too long."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, why()
        await asyncio.sleep(0.01)
