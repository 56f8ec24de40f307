"""LocalBackend: starts the engine when it is first needed, and again when it has died.

Invariant: one engine at a time; after `aclose` none.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.orchestrator.backend import Call, Capabilities, Delta
from anabranch.orchestrator.errors import BackendUnavailable, ConfigurationError, ModelNotFound
from anabranch.serving.backends.endpoint import Endpoint
from anabranch.serving.backends.local import models
from anabranch.serving.backends.local.engine import Engine, model_name
from anabranch.serving.backends.local.settings import Settings

if TYPE_CHECKING:
    from anabranch.serving.backends.local.session import Session

MOST_DEATHS = 3
_FINGERPRINT_BYTES = 8 << 20  # the tokenizer stands at the beginning of a GGUF file


class LocalBackend:
    """llama.cpp in a child process. Belongs to one event loop.

    After `MOST_DEATHS` engines that died without finishing a call in between, it starts no more.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._starting = asyncio.Lock()
        self._fetching: asyncio.Task[Path] | None = None
        self._given_up = threading.Event()
        self._deaths = 0
        self._closed = False

    @property
    def name(self) -> str:
        """`local:`, with the model's file where one was given."""
        return f"local:{self._settings.model or ''}"

    @property
    def engine(self) -> Engine | None:
        """The running engine, if it was started."""
        return self._session.engine if self._session else None

    async def probe(self) -> Capabilities:
        """What it can do; starts it, and fetches the default model where it is missing.

        Raises:
            ConfigurationError: the model cannot be fetched.
            BackendUnavailable: the engine does not start.
        """
        return (await self._running()).capabilities

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Run one call; see `Backend.stream`."""
        session = await self._running()
        if call.model not in (None, "", *session.capabilities.models):
            known = ", ".join(session.capabilities.models)
            raise ModelNotFound(f"{self.name} has no model {call.model!r}; it has: {known}")
        async with aclosing(session.perform(call)) as deltas:
            async for delta in deltas:
                if delta.end is not None:
                    self._deaths = 0
                yield delta

    async def openai_api(self) -> Endpoint:
        """Where the engine's OpenAI-compatible API is; starts it. Raises BackendUnavailable."""
        engine = (await self._running()).engine
        return Endpoint(url=f"{engine.url}/v1", api_key=engine.key or None)

    async def aclose(self) -> None:
        """End the engine. Calls in flight fail with BackendUnavailable. Idempotent."""
        self._closed = True
        self._given_up.set()
        async with self._starting:
            session, self._session = self._session, None
            if session is not None:
                await session.close()
        if self._fetching is not None:
            with suppress(ConfigurationError):
                await self._fetching

    async def _running(self) -> Session:
        if self._session is not None and self._session.engine.alive and not self._closed:
            return self._session
        async with self._starting:
            if self._closed:
                raise BackendUnavailable(f"{self.name} is closed", retryable=False)
            if self._session is not None and not self._session.engine.alive:
                await self._bury(self._session)
            if self._session is None:
                self._session = await self._start()
            return self._session

    async def _bury(self, session: Session) -> None:
        self._deaths += 1
        obituary = await session.engine.obituary()
        self._session = None
        await session.close()
        if self._deaths >= MOST_DEATHS:
            raise BackendUnavailable(f"{obituary}; it died {self._deaths} times", retryable=False)

    async def _start(self) -> Session:
        from anabranch.serving.backends.local.session import Session

        model = self._settings.model
        if model is None:
            model = await self._default_model()
        engine = await Engine.start(self._settings, model)
        try:
            return await Session.open(engine, _vocabulary(model))
        except BaseException:
            await engine.stop()
            raise

    async def _default_model(self) -> Path:
        """The default model's file. Its download outlives those who wait for it, but not this backend."""
        if self._fetching is None or self._fetching.done():
            folder = models.cache_folder(os.environ)
            self._fetching = asyncio.create_task(
                asyncio.to_thread(models.obtain, folder, given_up=self._given_up)
            )
        return await asyncio.shield(self._fetching)


def _vocabulary(model: Path) -> str:
    """Names the tokenizer of a model file: equal files have equal names."""
    with model.open("rb") as file:
        digest = hashlib.sha256(file.read(_FINGERPRINT_BYTES)).hexdigest()
    return f"gguf:{model_name(model)}:{model.stat().st_size}:{digest[:16]}"
