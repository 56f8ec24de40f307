"""Runs the embedded llama.cpp on its small model, for any test marked `llama`: fixtures, and helpers to call it.

The fixtures skip, with the reason, where the engine is not installed or the model cannot be fetched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch.orchestrator.backend import Call, Delta, End, TokenLogprob
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import ConfigurationError
from anabranch.orchestrator.sampling import Sampling
from anabranch.serving.backends.local import models
from anabranch.serving.backends.local.backend import LocalBackend
from anabranch.serving.backends.local.engine import Engine
from anabranch.serving.backends.local.settings import Settings, default_threads

SLOTS = 8
CONTEXT = 1024
GREEDY = Sampling(temperature=0.0)
HELLO = Branch.of("Say hello.")
RIVER = "Rivers carry water from the mountains to the sea. "
_rids = count()


@pytest.fixture(scope="session")
def llama_model() -> Path:
    """The small model's file; fetched where it is not in the cache."""
    if find_spec("xllamacpp") is None:
        pytest.skip("the embedded engine is not installed: pip install 'anabranch[local]'")
    try:
        return models.obtain(models.cache_folder(os.environ))
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def local_backend_url(llama_model: Path) -> str:
    """A `local:` URL that runs here, with eight slots of 1024 tokens."""
    return f"local:{llama_model}?slots={SLOTS}&context={CONTEXT}"


@pytest.fixture(scope="session")
def llama_openai_url(llama_model: Path) -> Iterator[str]:
    """Base URL (`http://127.0.0.1:PORT/v1`) of a running llama.cpp server that wants no key."""
    settings = Settings(model=llama_model, slots=SLOTS, context=CONTEXT, threads=default_threads())
    engine = asyncio.run(Engine.start(settings, llama_model, open_to_all=True))
    yield f"{engine.url}/v1"
    asyncio.run(engine.stop())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole stream."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    end: End
    tokens: int

    @property
    def cached(self) -> int:
        assert self.end.usage is not None
        return self.end.usage.cached

    @property
    def computed(self) -> int:
        assert self.end.usage is not None
        return self.end.usage.prompt - self.end.usage.cached


def stream(backend: LocalBackend, branch: Branch, **changes: Any) -> AsyncGenerator[Delta]:
    """Call the engine, greedily unless said otherwise."""
    wanted: dict[str, Any] = {"sampling": GREEDY, **changes}
    return backend.stream(Call(rid=f"{next(_rids):032x}", branch=branch, **wanted))


async def ask(backend: LocalBackend, branch: Branch, **changes: Any) -> Reply:
    """The whole reply; checks that the last delta, and only it, has the end."""
    deltas = [delta async for delta in stream(backend, branch, **changes)]
    assert [delta.end is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].end is not None
    return Reply(
        text="".join(delta.text for delta in deltas),
        ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        end=deltas[-1].end,
        tokens=sum(delta.tokens for delta in deltas),
    )


async def asks_server(backend: LocalBackend, method: str, path: str, body: object = None) -> Any:
    """What the engine itself says."""
    assert backend.engine is not None
    headers = {"Authorization": f"Bearer {backend.engine.key}"}
    async with aiohttp.request(method, backend.engine.url + path, json=body, headers=headers) as response:
        return await response.json()


async def decode(backend: LocalBackend, ids: tuple[int, ...]) -> str:
    """The text of some ids, as the engine says."""
    return str((await asks_server(backend, "POST", "/detokenize", {"tokens": ids}))["content"])
