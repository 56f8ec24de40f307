"""The proxy as a process: the application with all that looks on, under uvicorn, in one worker or several."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from starlette.routing import Route
from starlette.types import ASGIApp, Scope, Send

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.proxy.app import Endpoint, create_app
from anabranch.serving.proxy.guard import send_body
from anabranch.serving.proxy.observers import access
from anabranch.serving.proxy.observers.metrics import Metrics
from anabranch.serving.proxy.pages import runs_api
from anabranch.serving.proxy.pages.history import History
from anabranch.serving.proxy.requests import Observer
from anabranch.serving.proxy.settings import Settings, digest

_HANDED_DOWN = "ANABRANCH_SERVE_SETTINGS"
"""Environment variable in which worker processes find the settings; keys are in it as digests only."""
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
KEYS = "ANABRANCH_PROXY_KEYS"
IDLE_CONNECTION_S = 75
"""Longer than clients and load balancers keep theirs, so that none is closed as a request comes in on it."""


def full_app(settings: Settings) -> ASGIApp:
    """The application with history, metrics, access log, pages; with spans where `settings.otel` says so."""
    metrics, history = Metrics(), History(settings.history)
    observers: list[Observer] = [metrics, history]
    closing: list[Callable[[], Awaitable[None]]] = []
    if settings.log_format != "none":
        access.configure(settings.log_format)
        observers.append(access.AccessLog())
    if settings.otel:
        from anabranch.serving.proxy.observers.tracing import Tracing

        tracing = Tracing()
        observers.append(tracing)
        closing.append(tracing.aclose)

    async def told(scope: Scope, send: Send) -> None:
        body, content_type = metrics.render()
        await send_body(send, 200, body, content_type)

    pages = [Route("/metrics", Endpoint(told), methods=["GET"]), *runs_api.routes(history)]
    app = create_app(
        settings, observers=observers, routes=pages, closing=closing, on_models=metrics.know_models
    )
    metrics.follow("queue_length", "Requests that wait for a place.", lambda: app.admission.waiting)
    return app


def worker() -> ASGIApp:
    """The application of a worker process; uvicorn calls it there."""
    _calm_collector()
    return full_app(Settings.model_validate_json(os.environ[_HANDED_DOWN]))


def _calm_collector() -> None:
    """Look for garbage less often, and not among what has been imported: a tenth of the CPU time of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def serve(settings: Settings, *, host: str, port: int, workers: int = 1, fd: int | None = None) -> int:
    """Serve until told to stop by SIGINT or SIGTERM; requests under way get `settings.drain_s`. The exit code.

    Raises:
        InvalidParameter: several workers cannot share an embedded model.
    """
    if workers > 1 and settings.server.startswith("local:"):
        raise InvalidParameter(
            "--workers", "the embedded model is one worker's own; start it as a server, or use one worker"
        )
    options = {
        "host": host,
        "port": port,
        "fd": fd,
        "access_log": False,
        "log_level": "warning",
        "lifespan": "on",
        "ws": "none",
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": IDLE_CONNECTION_S,
        "timeout_graceful_shutdown": int(settings.drain_s),
    }
    if workers == 1:
        _calm_collector()
        server = uvicorn.Server(uvicorn.Config(full_app(settings), **options))  # type: ignore[arg-type]
        server.run()
        return 0 if server.started else 1
    with tempfile.TemporaryDirectory(prefix="anabranch-metrics-") as folder:
        os.environ |= {_HANDED_DOWN: settings.model_dump_json(), _METRICS: folder}
        uvicorn.run(f"{__name__}:worker", factory=True, workers=workers, **options)  # type: ignore[arg-type]
    return 0


def read_keys(file: Path | None) -> frozenset[str]:
    """The digests of the API keys in a file, one a line, and in `$ANABRANCH_PROXY_KEYS`, with commas between.

    Raises:
        InvalidParameter: the file cannot be read, or has no key in it.
    """
    keys = {key.strip() for key in os.environ.get(KEYS, "").split(",")}
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameter("--api-key-file", f"{file}: {error}") from error
        found = {line.strip() for line in lines if not line.lstrip().startswith("#")} - {""}
        if not found:
            # With no key at all the proxy would be open to everybody: surely not what was meant.
            raise InvalidParameter("--api-key-file", f"{file} has no key in it")
        keys |= found
    return frozenset(digest(key) for key in keys - {""})
