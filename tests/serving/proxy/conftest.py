"""Fixtures for the tests of the proxy: a model server that does as it is told, and the proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy_server import Client, serving
from upstream import Upstream
from upstream_replies import MODEL, WITH_AT, Ordinary, listing


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A model server; healthy, until a test says otherwise."""
    async with Upstream(Ordinary(), listing(MODEL, WITH_AT)) as upstream:
        yield upstream


@pytest.fixture
async def proxy(upstream: Upstream) -> AsyncIterator[Client]:
    """The proxy in front of it, with settings as they are by default."""
    async with serving(upstream.url) as client:
        yield client
