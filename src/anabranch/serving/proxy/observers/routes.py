"""The pattern that a request's path matches: for metrics and names of spans, which must be few."""

from __future__ import annotations

from anabranch.serving.proxy.requests import RequestInfo

OTHER = "other"
_KNOWN = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/models",
        "/health",
        "/ready",
        "/metrics",
        "/version",
        "/ui",
    )
)


def route_of(request: RequestInfo) -> str:
    """The request's own `route` where it is set, else a pattern for its path, or `other`; never a path as it came."""
    path = request.path
    if request.route or path in _KNOWN:
        return request.route or path
    if path.startswith("/v1/models/"):
        return "/v1/models/{id}"
    if path.startswith("/v1/anabranch/runs/"):
        return "/v1/anabranch/runs/{id}"
    if path == "/v1/anabranch/runs":
        return path
    return "/v1/{path}" if path.startswith("/v1/") else OTHER
