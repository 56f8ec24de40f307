"""What is known of a request while it is served: for access log, metrics, spans and the history of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from anabranch.orchestrator.events import Event

PLAIN = "none"
"""The strategy of a request that passes through."""


@dataclass(slots=True, kw_only=True)
class RequestInfo:
    """One request.

    Attributes:
        request_id: the client's own `X-Request-Id`, or one made for it; echoed.
        owner: digest of the API key that it came with; empty where the proxy wants none.
        method, path: as in the request line; `route` is the pattern that it matched, for metrics.
        model: as the client named it; `strategy` as it was chosen, `none` for what passes through.
        traceparent: the W3C header, where there was one.
        status: of the reply; 499 when the client went away before its end. 0 until then.
        error_code: of an error that came after the status had been sent, in mid-stream.
        started_at: Unix time in seconds.
        first_byte_s, wall_s: seconds from its arrival; None until then.
        branches, prompt, cached, completion, wasted: of its runs, as far as they are known.
    """

    request_id: str
    method: str = ""
    path: str = ""
    route: str = ""
    owner: str = ""
    model: str = ""
    strategy: str = PLAIN
    stream: bool = False
    traceparent: str = ""
    status: int = 0
    error_code: str = ""
    started_at: float = 0.0
    first_byte_s: float | None = None
    wall_s: float | None = None
    branches: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    wasted: int = 0


RunListener = Callable[[Event], None]


class Observer(Protocol):
    """Something that looks on. Each of these is called on the event loop and must not block or raise."""

    def request_began(self, request: RequestInfo) -> None:
        """A request came in; only its id, method, path and start are known yet."""

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """A run begins for this request: gives what is to hear its events, or None. A request with n > 1 has n runs."""
        ...

    def request_ended(self, request: RequestInfo) -> None:
        """It was answered, failed, or was left; `status` and `wall_s` are known."""
