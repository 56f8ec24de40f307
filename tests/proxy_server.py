"""The proxy for tests: under real uvicorn, on a real port, in this event loop or in a process of its own; and its client.

The client is plain aiohttp that takes nothing apart, so that tests see the very bytes.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from yarl import URL

from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.serving.proxy import Settings, create_app
from anabranch.serving.proxy.requests import Observer, RequestInfo, RunListener
from upstream import until

QUESTION = "Give me some tips for staying healthy."
"""One that the skeleton's router lets through."""
ONCE = RetryPolicy(attempts=1, overload_attempts=1)
"""No second try: tests of errors need not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply as it came."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's envelope; asserts that it is one, and nothing else."""
        assert self.headers["content-type"] == "application/json", self.content
        assert list(self.json) == ["error"], self.json
        error: dict[str, Any] = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["type"], str)
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream, read; `[DONE]` as text. Asserts that the stream is well formed."""
        return list(events_in(self.content))

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks of a stream that came to its end."""
        *chunks, done = self.events
        assert done == "[DONE]", done
        return chunks

    def text(self, index: int = 0) -> str:
        """The text of one choice of a streamed chat completion."""
        return "".join(
            choice["delta"].get("content") or ""
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == index
        )


FIELDS = ("data: ", "event: ", "id: ", "retry: ", "error: ")
"""Beginnings of lines; the last one is a server's mistake, which clients overlook."""


def events_in(stream: bytes) -> Iterator[Any]:
    """The data of each event of a whole stream."""
    assert not stream or stream.endswith(b"\n\n"), stream[-80:]
    for block in stream.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert all(line.startswith(FIELDS) for line in lines), lines
        if data:
            assert len(data) == 1, lines
            yield data[0] if data[0] == "[DONE]" else json.loads(data[0])


class Client:
    """A client of the proxy.

    Attributes:
        url: of the proxy, without a path.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    @asynccontextmanager
    async def open(
        self, path: str, body: object = None, *, method: str | None = None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A reply whose body has not been read yet; leaving the block before its end drops the connection."""
        if body is not None:
            options["data"] = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
            options["headers"] = {"content-type": "application/json", **options.get("headers", {})}
        chosen = method or ("GET" if body is None else "POST")
        response = await self._session.request(chosen, URL(self.url + path, encoded=True), **options)
        try:
            yield response
        finally:
            response.close()

    async def ask(self, path: str, body: object = None, **options: Any) -> Answer:
        """A whole reply."""
        async with self.open(path, body, **options) as response:
            content = await response.read()
            return Answer(status=response.status, headers=response.headers, content=content)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def chat(self, model: str = "stub", content: Any = QUESTION, **fields: Any) -> Answer:
        """A chat completion; `headers` are the request's."""
        options = {"headers": fields.pop("headers")} if "headers" in fields else {}
        return await self.ask("/v1/chat/completions", chat(model, content, **fields), **options)


def chat(model: str = "stub", content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


async def read_until(response: aiohttp.ClientResponse, part: bytes) -> bytes:
    """What comes up to and with this part of a reply."""
    came = b""
    while part not in came:
        piece = await response.content.readany()
        assert piece, f"the reply ended without {part!r}: {came[-200:]!r}"
        came += piece
    return came


async def leaving(asked: Awaitable[object], *, after_s: float) -> None:
    """Ask, and go away after so many seconds if there is no whole answer by then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asked


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.began: list[RequestInfo] = []
        self.ended: list[RequestInfo] = []

    def request_began(self, request: RequestInfo) -> None:
        """Keep it."""
        self.began.append(request)

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """Nothing is heard."""
        return None

    def request_ended(self, request: RequestInfo) -> None:
        """Keep it."""
        self.ended.append(request)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals are the tests' own."""
        yield

    async def main_loop(self) -> None:
        """Wait, without uvicorn's ten looks a second at the clock."""
        await self.on_tick(0)
        await self.stopping.wait()


@asynccontextmanager
async def serving(
    backend: str,
    *,
    retry: RetryPolicy | None = ONCE,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> AsyncIterator[Client]:
    """The proxy in front of a backend, in this event loop.

    Args:
        retry: of the engine; None for the one that the proxy chooses by itself.
    """
    chosen = Settings.of(backend=backend, **settings)
    orchestrator = None if retry is None else Orchestrator(backend, roles=chosen.roles, retry=retry)
    config = uvicorn.Config(
        create_app(chosen, orchestrator, observers),
        access_log=False,
        log_config=None,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or running.done(), 30)
        async with client(f"http://127.0.0.1:{listener.getsockname()[1]}") as made:
            yield made
    finally:
        server.stopping.set()
        await running
        if orchestrator is not None:
            await orchestrator.aclose()


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Client]:
    """A client of what listens at this URL."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        yield Client(url, session)


@asynccontextmanager
async def child(
    backend: str, *options: str, **environment: str
) -> AsyncGenerator[tuple[Client, asyncio.subprocess.Process]]:
    """`anabranch serve` in a process of its own, as users run it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "anabranch", "serve", "--backend", backend, "--port", str(port), *options]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment})
    try:
        async with client(f"http://127.0.0.1:{port}") as made:
            await _answers(made, process)
            yield made, process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)


async def _answers(made: Client, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.returncode is None, "the proxy did not start"
        assert time.monotonic() < deadline, "the proxy does not answer"
        try:
            assert (await made.ask("/health")).status == 200
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
        else:
            return


def memory_mb(pid: int) -> float:
    """Resident memory of a process; Linux only."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))
