"""Upstreams: the model servers behind the proxy, each with its engine and its way through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from anabranch.orchestrator.errors import BackendError
from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.serving.backends.endpoint import OffersOpenAI
from anabranch.serving.proxy.errors import ProxyError
from anabranch.serving.proxy.relay import Relay
from anabranch.serving.proxy.reuse import NotingConnector
from anabranch.serving.proxy.settings import Settings

CONNECT_S = 10.0
PROBE_S = 5.0
RETRY = RetryPolicy(overload_attempts=3, longest_wait_s=5.0)
"""A client waits at the other end, and has retries of its own: a longer `Retry-After` is for it to decide on."""


class Upstream:
    """One model server: the engine for what is run by a strategy, the relay for what passes through."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        session: aiohttp.ClientSession,
        settings: Settings,
        on_models: Callable[[frozenset[str]], None],
    ) -> None:
        self.orchestrator = orchestrator
        self._session, self._settings, self._on_models = session, settings, on_models
        backend = orchestrator.lanes[0].backend
        # Asked once: isinstance of a protocol looks at every attribute.
        self._passing = backend if isinstance(backend, OffersOpenAI) else None
        self._relay: Relay | None = None
        self._names: frozenset[str] | None = None

    @property
    def passes(self) -> bool:
        """Whether the server has an OpenAI-compatible API of its own."""
        return self._passing is not None

    async def relay(self) -> Relay:
        """The way through. Raises UnsupportedCapability where there is none."""
        backend = self._passing
        if backend is None:
            raise ProxyError(
                status=501,
                message=f"{self.orchestrator.lanes[0].backend.name} has no OpenAI-compatible API: only chat is answered",
                code="unsupported",
            )
        # Asked each time: a server that was started anew has another address.
        endpoint = await backend.openai_api()
        if self._relay is None or self._relay.endpoint != endpoint:
            self._relay = Relay(endpoint, self._session, forward_client_key=self._settings.forward_client_key)
        return self._relay

    async def models(self) -> dict[str, Any]:
        """The server's list of models, in OpenAI's form."""
        if self.passes:
            listed = await (await self.relay()).get_json("/models")
        else:
            names = (await self.orchestrator.lanes[0].capabilities()).models
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "anabranch"} for name in names]
            listed = {"object": "list", "data": data}
        self._names = frozenset(str(model.get("id")) for model in listed.get("data") or ())
        self._on_models(self._names)
        return listed

    async def model_names(self) -> frozenset[str]:
        """The names of its models, asked for once; none where it does not tell them now."""
        if self._names is None:
            try:
                await self.models()
            except (ProxyError, BackendError):
                return frozenset()
        return self._names or frozenset()

    async def check(self) -> None:
        """Raise ProxyError or BackendError where it cannot be reached now."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self.models()
        except TimeoutError:
            raise ProxyError(status=503, message=f"no list of models within {PROBE_S:g} s") from None


class Upstreams:
    """The proxy's own model server, and those that a request may name. Belongs to one event loop.

    Args:
        orchestrator: an engine to use for the proxy's own server; it is not closed with these.
        on_models: told the names of a server's models whenever they were asked for.
    """

    def __init__(
        self,
        settings: Settings,
        orchestrator: Orchestrator | None,
        on_models: Callable[[frozenset[str]], None],
    ) -> None:
        self._settings, self._given, self._on_models = settings, orchestrator, on_models
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[str | None, Upstream] = {}

    async def open(self) -> None:
        """Make ready; nothing is asked of a server yet."""
        self._session = await self._stack.enter_async_context(_session(self._settings.upstream_idle_s))
        if self._given is not None:
            self._known[None] = Upstream(self._given, self._session, self._settings, self._on_models)
        else:
            await self._add(None, self._settings.backend)

    async def aclose(self) -> None:
        """Close connections and engines."""
        await self._stack.aclose()

    async def get(self, url: str | None = None) -> Upstream:
        """The proxy's own, or the one of this URL. Raises ProxyError where the URL is not on the list."""
        if url is not None and url not in self._settings.allowed_backends:
            raise ProxyError(
                status=403,
                message="anabranch.backend: this proxy does not go to that address",
                param="anabranch.backend",
            )
        if url not in self._known:
            await self._add(url, url)
        return self._known[url]

    async def _add(self, key: str | None, url: str | None) -> None:
        assert self._session is not None
        orchestrator = Orchestrator(url, roles=self._settings.roles, retry=RETRY)
        await self._stack.enter_async_context(orchestrator)
        self._known[key] = Upstream(orchestrator, self._session, self._settings, self._on_models)


def _session(idle_s: float) -> aiohttp.ClientSession:
    """Without a limit on connections: `max_inflight` is the one there is."""
    return aiohttp.ClientSession(
        connector=NotingConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=idle_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )
