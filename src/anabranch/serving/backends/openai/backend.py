"""The backend itself: one long-lived client, one streaming method.

The engine's scheduler is the one retry layer and keeps the clocks, so the SDK retries nothing and times out on
nothing but connecting. Chunks are read from the bytes of its replies, and taken as plain objects: as the SDK's models they
cost four times the CPU.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.backend import Call, Capabilities, Delta
from anabranch.orchestrator.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    InvalidParameter,
    MalformedResponse,
    RequestRejected,
    UnsupportedCapability,
)
from anabranch.serving.backends.endpoint import Endpoint
from anabranch.serving.backends.keys import HINT
from anabranch.serving.backends.openai import embeddings, failures
from anabranch.serving.backends.openai.address import NO_KEY, Address, parse
from anabranch.serving.backends.openai.dialects import DIALECTS, LLAMACPP, OTHER, Dialect, describe, recognise
from anabranch.serving.backends.openai.refusals import Refusals
from anabranch.serving.backends.openai.reply import Reader
from anabranch.serving.backends.openai.request import build, scans_stops
from anabranch.serving.backends.sse import DONE, Events

if TYPE_CHECKING:
    import openai

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0  # below uvicorn's 5 s, so that no request goes out on a connection that is just being closed


def from_url(url: str) -> OpenAIBackend:
    """A backend for this URL. Nothing is asked of the server yet.

    Raises:
        InvalidParameter: the URL is no address of a server.
    """
    return OpenAIBackend(parse(url, os.environ))


class OpenAIBackend:
    """Any OpenAI-compatible server.

    What a server cannot do is known from its kind, or learned from its first refusal: `probe` then says so, too.
    Belongs to one event loop.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._dialect: Dialect = OTHER
        self._capabilities: Capabilities | None = None
        self._refusals: defaultdict[str, Refusals] = defaultdict(Refusals)
        self._client: openai.AsyncOpenAI | None = None
        self._errors: tuple[type[Exception], ...] = ()
        self._probing = asyncio.Lock()
        self._failure: BackendError | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The base URL, without user and password."""
        return self._address.name

    async def probe(self) -> Capabilities:
        """What it can do, as far as is known by now; asks the server once. Raises BackendError."""
        if self._capabilities is not None:
            return self._capabilities
        failed_before = self._failure
        async with self._probing:
            if self._failure is not None and self._failure is not failed_before:
                raise self._failure  # it failed while this caller waited: all who wait fail together
            if self._capabilities is None:
                try:
                    self._capabilities = await self._ask()
                except BackendError as error:
                    self._failure = error
                    raise
        return self._capabilities

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Run one call; see `Backend.stream`."""
        capabilities = await self.probe()
        model = self._model(call, capabilities)
        if call.measure is not None:
            yield await self._embed(call, model)
            return
        reader = Reader(call, scan_stops=scans_stops(call, self._dialect))
        reply = await self._open(call, model)
        try:
            async with aclosing(_chunks(reply)) as chunks:
                async for chunk in chunks:
                    if (delta := reader.feed(chunk)) is not None:
                        yield delta
                    if reader.stopped:
                        break
            self._learn(model, reader)
            yield reader.finish()
        except self._errors as error:
            raise self._failed(error) from error
        finally:
            # Unless the reply was read to its end this drops the connection, at which servers stop working on it.
            await reply.close()

    async def openai_api(self) -> Endpoint:
        """The server itself."""
        return Endpoint(url=self._address.base_url, api_key=self._address.api_key)

    async def aclose(self) -> None:
        """Close the client and its connections."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _embed(self, call: Call, model: str) -> Delta:
        """The embedding of a text. A server that has none is known as such from then on."""
        try:
            answer = await self._connect().post(
                embeddings.PATH, body=embeddings.build(call, model), cast_to=object
            )
        except self._errors as error:
            failure = self._failed(error)
            if not embeddings.refused(failure):
                raise failure from error
            if self._capabilities is not None:
                self._capabilities = replace(self._capabilities, measures=frozenset())
            raise UnsupportedCapability(f"{self.name} has no embeddings for {model!r}: {failure}") from error
        return embeddings.read(answer)

    async def _open(self, call: Call, model: str) -> openai.AsyncStream[object]:
        """Send the request, with one field less each time that the server refuses one."""
        refusals = self._refusals[model]
        while True:
            body = build(call, model, self._dialect, refusals)
            try:
                return await self._post(body)
            except RequestRejected as error:
                if not self._negotiable(refusals, body, error):
                    raise

    def _negotiable(self, refusals: Refusals, body: Mapping[str, Any], error: RequestRejected) -> bool:
        try:
            return refusals.learn(body, error)
        finally:
            self._declare(refusals)

    def _learn(self, model: str, reader: Reader) -> None:
        """What a whole reply shows of the server."""
        if reader.lacks_logprobs:
            self._refusals[model].fields.add("logprobs")
            self._declare(self._refusals[model])
        if reader.reports_cached and self._capabilities and not self._capabilities.cached_tokens:
            self._capabilities = replace(self._capabilities, cached_tokens=True)

    def _declare(self, refusals: Refusals) -> None:
        if self._capabilities is not None:
            self._capabilities = refusals.reduce(self._capabilities)

    def _model(self, call: Call, capabilities: Capabilities) -> str:
        if call.model is None and self._address.hosted:
            raise InvalidParameter("model", "name one: OpenAI's service has many and no default")
        return call.model or next(iter(capabilities.models), "default")

    async def _ask(self) -> Capabilities:
        """What the server says of itself."""
        models = _entries(await self._get("/models", without=[]), self.name)
        self._dialect = DIALECTS[self._address.kind] if self._address.kind else recognise(models)
        props = await self._get(f"{self._address.root}/props", without={}) if self._dialect is LLAMACPP else {}
        return describe(self._dialect, models, props if isinstance(props, dict) else {})

    async def _get(self, path: str, *, without: object) -> object:
        """A JSON object of the server, or `without` where it has no such path."""
        client = self._connect()
        try:
            return await client.get(path, cast_to=object)
        except self._errors as error:
            failure = self._failed(error)
            if failure.status_code in (404, 405, 501):
                return without
            raise failure from error

    async def _post(self, body: Mapping[str, Any]) -> openai.AsyncStream[object]:
        from openai import AsyncStream

        client = self._connect()
        try:
            return await client.post(
                "/chat/completions",
                body=body,
                options={"headers": dict(self._dialect.headers)},
                cast_to=object,
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except self._errors as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BackendError:
        failure = failures.translate(error, self.name)
        if isinstance(failure, AuthenticationFailed) and self._address.api_key == NO_KEY:
            failure.add_note(f"no key was sent: {HINT}")
        return failure

    def _connect(self) -> openai.AsyncOpenAI:
        """The client, made at the first use: importing the SDK takes half a second."""
        if self._closed:
            raise BackendUnavailable(f"{self.name}: this backend was closed", retryable=False)
        if self._client is None:
            self._client = _client(self._address)
            self._errors = failures.transport_errors()
        return self._client


def _client(address: Address) -> openai.AsyncOpenAI:
    import openai

    if address.api_key is None:
        raise AuthenticationFailed(f"{address.name} wants a key: set OPENAI_API_KEY")
    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
        max_connections=0, keepalive_expiry=KEEPALIVE_S
    )  # 0: unlimited
    return openai.AsyncOpenAI(
        api_key=address.api_key,
        base_url=address.base_url,
        max_retries=0,
        timeout=openai.Timeout(None, connect=CONNECT_TIMEOUT_S),
        http_client=openai.DefaultAioHttpClient(limits=limits),
    )


async def _chunks(reply: openai.AsyncStream[object]) -> AsyncGenerator[object]:
    """The chunks of a reply; some servers answer a request for a stream with one whole object."""
    kind = reply.response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        yield json.loads(await reply.response.aread())
    elif kind.startswith("text/html"):
        raise MalformedResponse("a web page came in the place of a reply; is the path of the URL right?")
    else:
        events = Events()
        async for received in reply.response.aiter_bytes():
            for data in events.feed(received):
                if data != DONE:  # read on behind it, so that the connection is used again
                    yield json.loads(data)
        for data in events.finish():
            if data != DONE:
                yield json.loads(data)


def _entries(listing: object, where: str) -> list[Mapping[str, Any]]:
    """The models of a listing: OpenAI's object, or a bare list."""
    entries = listing.get("data") if isinstance(listing, dict) else listing
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedResponse(f"{where}: its list of models is none; is the path of the URL right?")
    return entries
