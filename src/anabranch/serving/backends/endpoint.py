"""Where the model server behind a backend has its OpenAI-compatible API, for what passes through to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible API.

    Attributes:
        url: its base, `/v1` included, without a slash at its end.
        api_key: sent as bearer token; None for none.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)


@runtime_checkable
class OffersOpenAI(Protocol):
    """A backend whose server has such an API too."""

    async def openai_api(self) -> Endpoint:
        """Where it is. Raises BackendError where the server cannot be started or found."""
        ...


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for this address."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
