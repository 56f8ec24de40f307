"""From a backend URL to where the requests go, and with which key. Pure: the environment is handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.backends.keys import HOSTED, key_for
from anabranch.serving.backends.openai.dialects import DIALECTS

NO_KEY = "EMPTY"
"""What servers without keys are sent, since OpenAI's SDK sends nothing without one."""

_HOST = urlsplit(HOSTED).hostname


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is.

    Attributes:
        base_url: without query, and without a slash at its end; `/v1` is part of it.
        api_key: None when the server wants one and none is set.
        kind: name of the dialect where the user gave it, else empty.
    """

    base_url: str
    api_key: str | None = field(repr=False)
    kind: str = ""

    @property
    def hosted(self) -> bool:
        """Whether this is OpenAI's own service."""
        return urlsplit(self.base_url).hostname == _HOST

    @property
    def root(self) -> str:
        """The server without the API's path, for what llama.cpp offers outside `/v1`."""
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix("/v1"), "", ""))

    @property
    def name(self) -> str:
        """For people: without user and password."""
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def parse(url: str, environment: Mapping[str, str]) -> Address:
    """Read a backend URL. Raises InvalidParameter when it is none."""
    scheme, _, rest = url.partition(":")
    if scheme == "openai":
        bare = rest.lstrip("/").partition("?")[0]
        base = environment.get("OPENAI_BASE_URL") or HOSTED
        url = f"http:{rest}" if bare else base + rest.lstrip("/")
    parts = _split(url)
    hosted = parts.hostname == _HOST
    options = _options(parts.query)
    base_url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))
    return Address(
        base_url=base_url,
        api_key=key_for(base_url, options.get("key", ""), environment) or (None if hosted else NO_KEY),
        kind=options.get("kind", "") or ("openai" if hosted else ""),
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidParameter(
            "backend", f"{url!r} is no address; write http://HOST:PORT/v1 or openai://HOST:PORT/v1"
        )
    return parts


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {"key", "kind"}):
        raise InvalidParameter("backend", f"unknown option {unknown[0]!r} in the URL; known: key, kind")
    if (kind := options.get("kind")) and kind not in DIALECTS:
        raise InvalidParameter("backend", f"unknown kind {kind!r}; known: {', '.join(DIALECTS)}")
    return options
