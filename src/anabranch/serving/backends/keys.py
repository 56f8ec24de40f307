"""Which key goes to which server: never one that is meant for another. Pure: the environment is handed in.

A backend's URL may name the environment variable that holds its key: `http://HOST:8000/v1?key=MY_KEY`. Without that, a
variable's key goes to the server that the environment names beside it, and to no other:

- `$OPENAI_API_KEY` to that of `$OPENAI_BASE_URL`, or to OpenAI's own service where that is not set;
- `$ANABRANCH_API_KEY` to that of `$ANABRANCH_BACKEND`, in whose place stands what `--backend` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from anabranch.orchestrator.errors import InvalidParameter

HOSTED = "https://api.openai.com/v1"
"""OpenAI's own service."""
HINT = "a key goes into $ANABRANCH_API_KEY for the server that --backend names, or ?key=VARIABLE in the URL of any other"

_PORTS = {"http": 80, "https": 443, "openai": 80, "sglang": 30000, "sglang+https": 443}


def key_for(url: str, variable: str, environment: Mapping[str, str]) -> str | None:
    """The key of the server at a URL; None where there is none for it.

    Args:
        variable: what `?key=` of the URL says; empty where it says nothing.

    Raises:
        InvalidParameter: that variable is not set.
    """
    if variable:
        if key := environment.get(variable):
            return key
        raise InvalidParameter("backend", f"the URL says key={variable}, and ${variable} is not set")
    pairs = (
        ("OPENAI_API_KEY", environment.get("OPENAI_BASE_URL") or HOSTED),
        ("ANABRANCH_API_KEY", environment.get("ANABRANCH_BACKEND", "")),
    )
    return next(
        (
            environment[name]
            for name, server in pairs
            if environment.get(name) and _place(server) == _place(url)
        ),
        None,
    )


def _place(url: str) -> tuple[str, int] | None:
    """Host and port; None where it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None
