"""Real servers as benchmarks need them: with an empty cache, and with their tokenizer at hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from anabranch import Branch
from anabranch.orchestrator.backend import Backend, Call
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.registry import open_backend
from anabranch.serving.backends.local import from_url, models
from anabranch.serving.backends.local.client import Client
from anabranch.serving.backends.local.engine import Engine
from anabranch.serving.backends.local.prompts import Tokenizer
from anabranch.serving.backends.local.settings import parse
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.prompt import prompt_of
from anabranch.serving.backends.sglang.server import inspect

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cold:
    """A backend whose server has nothing in its cache. `ids` gives the prompt that the model sees for a branch."""

    backend: Backend
    ids: Callable[[Branch], Awaitable[Ids]]


@asynccontextmanager
async def cold(url: str) -> AsyncGenerator[Cold]:
    """The server at this URL, `local:…` or `sglang://…`, with an empty cache. Close the backend yourself."""
    opened = {"local": _local, "sglang": _sglang}.get(scheme(url))
    if opened is None:
        raise InvalidParameter("backend", f"{url!r}: only local: and sglang:// tell their token ids")
    async with opened(url) as server:
        yield server


def scheme(url: str) -> str:
    """What stands before the colon."""
    return url.partition(":")[0]


@asynccontextmanager
async def _local(url: str) -> AsyncGenerator[Cold]:
    """A new engine has an empty cache."""
    backend = from_url(url)
    vocabulary = (await backend.probe()).vocabulary
    engine = backend.engine
    assert engine is not None
    tokenizer = Tokenizer(_client(engine), vocabulary)

    async def ids(branch: Branch) -> Ids:
        return await tokenizer.prompt(Call(rid="", branch=branch))

    yield Cold(backend=backend, ids=ids)


@asynccontextmanager
async def _sglang(url: str) -> AsyncGenerator[Cold]:
    """A server is told to flush its cache."""
    connection = Connection(f"http://{urlsplit(url).netloc}")
    try:
        server = await inspect(connection, Connection)
        await _flush(connection.url)

        async def ids(branch: Branch) -> Ids:
            return (await prompt_of(Call(rid="", branch=branch), server)).ids

        yield Cold(backend=open_backend(url), ids=ids)
    finally:
        await connection.aclose()


async def _flush(address: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}/flush_cache?timeout=10") as response,
    ):
        response.raise_for_status()


async def computed_without_us(url: str, prompts: Sequence[Ids], tokens: int) -> int:
    """Prompt tokens that a cold llama.cpp computes when it is sent all prompts at once, and chooses its own slots."""
    settings = parse(url, os.environ)
    model = settings.model
    if model is None:
        model = await asyncio.to_thread(models.obtain, models.cache_folder(os.environ))
    engine = await Engine.start(settings, model)
    client, computed = _client(engine), 0

    async def complete(prompt: Ids) -> None:
        nonlocal computed
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "cache_prompt": True, "stream": True}
        async for event in client.events("/completion", body):
            computed += event["timings"]["prompt_n"] if event.get("stop") else 0

    try:
        async with asyncio.TaskGroup() as group:
            for prompt in prompts:
                group.create_task(complete(prompt))
    finally:
        await engine.stop()
    return computed


def _client(engine: Engine) -> Client:
    return Client(engine.url, engine.key, engine.obituary)
