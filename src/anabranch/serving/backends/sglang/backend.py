"""The backend for SGLang's native HTTP API: token ids in and out.

The life of a call: the conversation goes through the server's own chat template (`/tokenize`), the branch's segments
follow as the ids that the model itself wrote, `/generate` streams, and closing the stream early aborts the call on
the server. So a continued branch is token-exact: text is never tokenized again between calls of one vocabulary.

It does not retry, queue, or limit time: the scheduler does. Log-probabilities are the server's, at the temperature of
the call. A `seed` makes sampling repeatable only on servers run with `--enable-deterministic-inference`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from urllib.parse import parse_qsl, urlsplit

from anabranch.orchestrator.backend import Call, Capabilities, Delta, End
from anabranch.orchestrator.errors import (
    BackendError,
    BackendUnavailable,
    InvalidParameter,
    UnsupportedCapability,
)
from anabranch.serving.backends.endpoint import Endpoint
from anabranch.serving.backends.keys import HINT, key_for
from anabranch.serving.backends.sglang import measuring, reply, request
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.mending import Halves, Mender
from anabranch.serving.backends.sglang.prompt import NO_PROMPT, Prompt, prompt_of
from anabranch.serving.backends.sglang.reply import Reader, Unroller
from anabranch.serving.backends.sglang.server import Server, inspect
from anabranch.serving.backends.sglang.thinking import Splitter

log = logging.getLogger(__name__)

ABORT_S = 1.0
"""Longest wait for the server to take note of an abort, in seconds."""

DEFAULT_PORT = 30000


def from_url(url: str) -> SGLangBackend:
    """`sglang://HOST[:PORT]`, or `sglang+https://…`; for its key see `keys`."""
    problem = InvalidParameter("backend", f"{url!r}: write sglang://HOST:PORT; {HINT}")
    try:
        parts = urlsplit(url)
        port, options = parts.port, dict(parse_qsl(parts.query))
    except ValueError:
        raise problem from None
    if (
        parts.scheme not in ("sglang", "sglang+https")
        or not parts.hostname
        or options.keys() - {"key"}
        or "@" in parts.netloc
    ):
        raise problem
    secure = parts.scheme == "sglang+https"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    end = f":{port}" if port else "" if secure else f":{DEFAULT_PORT}"
    address = f"{'https' if secure else 'http'}://{host}{end}{parts.path.rstrip('/')}"
    name, _, _ = url.partition("?")
    return SGLangBackend(address, name=name, api_key=key_for(address, options.get("key", ""), os.environ))


class SGLangBackend:
    """An SGLang server, or a router before several.

    Args:
        address: `http(s)://HOST:PORT`.
        name: what it is called; its address where None.
        api_key: sent as bearer token.
    """

    def __init__(self, address: str, *, name: str | None = None, api_key: str | None = None) -> None:
        self._name, self._api_key = name or address, api_key
        self._connections: list[Connection] = []
        self._entry = self._connect(address)
        self._server: Server | None = None
        self._probing = asyncio.Lock()
        self._aborts: set[asyncio.Task[None]] = set()
        self._halves = Halves()

    @property
    def name(self) -> str:
        """Its URL."""
        return self._name

    async def probe(self) -> Capabilities:
        """What the server can do; asks once and remembers. Raises BackendError where it is not reachable."""
        return (await self._known()).capabilities

    async def openai_api(self) -> Endpoint:
        """Where the server's OpenAI-compatible API is."""
        return Endpoint(url=f"{self._entry.url}/v1", api_key=self._api_key)

    async def aclose(self) -> None:
        """Let go of connections. Idempotent."""
        for task in list(self._aborts):
            task.cancel()
        if self._aborts:
            await asyncio.wait(self._aborts)
        for connection in self._connections:
            await connection.aclose()

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Run one call: see `Backend.stream`."""
        server = await self._known()
        prompt = NO_PROMPT if call.measure == "embedding" else await prompt_of(call, server)
        ended = False
        try:
            async with aclosing(self._work(call, server)(call, server, prompt)) as deltas:
                async for delta in deltas:
                    ended = delta.end is not None
                    yield delta
        except (GeneratorExit, asyncio.CancelledError):
            if not ended:
                await self._abort(call.rid, server)
            raise

    def _work(self, call: Call, server: Server) -> Callable[[Call, Server, Prompt], AsyncGenerator[Delta]]:
        if call.measure is not None:
            return self._measure
        if "likelihood" not in (measures := server.capabilities.measures):
            raise UnsupportedCapability(f"{self.name} writes no text; it measures: {', '.join(measures)}")
        return self._score if call.labels else self._generate

    def _connect(self, url: str) -> Connection:
        connection = Connection(url, api_key=self._api_key)
        self._connections.append(connection)
        return connection

    async def _known(self) -> Server:
        if self._server is None:
            async with self._probing:
                if self._server is None:
                    self._server = await inspect(self._entry, self._connect)
        return self._server

    async def _generate(self, call: Call, server: Server, prompt: Prompt) -> AsyncGenerator[Delta]:
        body = request.build(call, prompt.ids, server, opened=prompt.opened)
        splitter = Splitter(server.tags, opened=prompt.opened, begun=bool(call.branch.segments))
        reader, unroller = Reader(call.stop, splitter, call.model), Unroller(incremental=server.incremental)
        special = call.sampling.extra.get("skip_special_tokens") is False
        mender = Mender(server.tokenizer, self._halves.lead(prompt.ids), special=special)
        async with aclosing(self._entry.events("/generate", body, headers=request.headers(call))) as batches:
            async for payloads in batches:
                for piece in unroller.feed(payloads):
                    if (delta := reader.feed(await mender.mend(piece))) is not None:
                        yield delta
        if not reader.ended:
            raise BackendUnavailable(f"the reply of {self.name} ended in the middle")
        rest = reader.finish(await mender.text(reader.ids) if reader.stopped else None)
        if reader.halved:
            self._halves.remember((*prompt.ids, *reader.ids))
        for delta in rest:
            yield delta

    async def _score(self, call: Call, server: Server, prompt: Prompt) -> AsyncGenerator[Delta]:
        """How likely each label is to come next, judged by its first token."""
        firsts = [(await server.tokenizer.text(label))[:1] for label in call.labels]
        if not all(firsts) or len(set(firsts)) < len(firsts):
            raise UnsupportedCapability(f"labels must differ in their first token: {', '.join(call.labels)}")
        body = request.build_score(call, prompt.ids, server, [first[0] for first in firsts])
        answer = await self._entry.post("/generate", body, headers=request.headers(call))
        scores, meta = reply.label_logprobs(call.labels, answer)
        queued_s = meta.get("queue_time")
        end = End(usage=reply.usage(meta), label_logprobs=scores, queued_s=queued_s, model=call.model)
        yield Delta(tokens=0, end=end)

    async def _measure(self, call: Call, server: Server, prompt: Prompt) -> AsyncGenerator[Delta]:
        """Ask for numbers in place of text."""
        asked = measuring.ask(call, prompt)
        answer = await self._entry.post(asked.path, asked.body, headers=request.headers(call))
        numbers, meta = measuring.read(call, answer)
        yield Delta(tokens=0, end=End(usage=reply.usage(meta), measured=numbers, model=call.model))

    async def _abort(self, rid: str, server: Server) -> None:
        """Tell the server, even if we are cancelled meanwhile; it also notices by itself, but later."""
        tasks = [asyncio.create_task(_post_abort(worker, rid)) for worker in server.workers]
        for task in tasks:
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
        await asyncio.wait(tasks)


async def _post_abort(worker: Connection, rid: str) -> None:
    try:
        async with asyncio.timeout(ABORT_S):
            await worker.post("/abort_request", {"rid": rid})
    except (BackendError, TimeoutError) as error:
        log.debug("abort of %s did not reach %s: %s", rid, worker.url, error)
