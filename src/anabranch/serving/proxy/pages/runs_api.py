"""Endpoints for people and programs that look at runs: the recent ones as JSON, as trace files, and as a page.

The page is a few static files that ask for nothing from elsewhere; it gets its data from the endpoints beside it, and
only these want a key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anabranch.orchestrator.events import to_dict, to_json
from anabranch.serving.proxy.errors import ProxyError, bad_request
from anabranch.serving.proxy.pages.history import History
from anabranch.serving.proxy.pages.recording import Recording

BASE = "/v1/anabranch"
USUAL_LIMIT, MOST_LISTED = 50, 1_000
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_UI = Path(__file__).parent / "ui"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def routes(history: History) -> list[Route]:
    """The routes for the runs that a history has. They raise ProxyError, and want the request's owner in its state."""
    api = RunsApi(history)
    return [
        Route(f"{BASE}/runs", api.runs, methods=["GET"]),
        Route(f"{BASE}/runs/{{id}}", api.run, methods=["GET"]),
        Route(BASE, _nothing_here, methods=_METHODS),
        Route(f"{BASE}/{{path:path}}", _nothing_here, methods=_METHODS),
        Route("/ui", _page, methods=["GET"]),
        Route("/ui/", _to_page, methods=["GET"]),
        Route("/ui/{name}", _page_file, methods=["GET"]),
    ]


class RunsApi:
    """Gives what a history has, to the owner of each run and to nobody else."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def runs(self, request: Request) -> Response:
        """The recent runs, newest first; `?limit=` says how many."""
        most = _number(request, "limit", USUAL_LIMIT, least=1, most=MOST_LISTED)
        listed = [recording.summary() for recording in self._history.runs(_owner(request), most)]
        return _json({"object": "list", "data": listed})

    async def run(self, request: Request) -> Response:
        """One run with its events; `?after=N` leaves the first N out, `?format=jsonl` makes it a trace file."""
        name = request.path_params["id"]
        recording = self._history.find(_owner(request), name)
        if recording is None:
            raise ProxyError(status=404, message=f"no run {name!r} among the recent ones", code="run_not_found")
        form = request.query_params.get("format", "json")
        if form == "jsonl":
            return _trace_file(recording)
        if form != "json":
            raise bad_request(f"format: {form!r} is neither json nor jsonl", param="format")
        after = _number(request, "after", 0, least=0)
        events = [to_dict(event) for event in recording.read(after)]
        return _json({**recording.summary(words=4_000), "events": events, "next": after + len(events)})


def _owner(request: Request) -> str:
    """Digest of the key that came with a request; empty where none is wanted."""
    info = request.scope.get("state", {}).get("anabranch")
    return getattr(info, "owner", "")


def _number(request: Request, name: str, usual: int, *, least: int, most: int | None = None) -> int:
    given = request.query_params.get(name)
    if given is None:
        return usual
    if not (given.isascii() and given.isdigit() and len(given) < 10) or int(given) < least:
        raise bad_request(f"{name}: must be a whole number from {least} on, got {given[:40]!r}", param=name)
    return int(given) if most is None else min(int(given), most)


def _json(body: Mapping[str, Any]) -> Response:
    # errors: a model may write half a surrogate pair
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, media_type="application/json", headers={"cache-control": "no-store"})


def _trace_file(recording: Recording) -> Response:
    lines = "".join(to_json(event) + "\n" for event in recording.read())
    return Response(
        lines.encode("utf-8", "replace"),
        media_type="application/x-ndjson",
        headers={
            "cache-control": "no-store",
            "content-disposition": f'attachment; filename="run-{recording.run_id[:12]}.jsonl"',
        },
    )


async def _nothing_here(request: Request) -> Response:
    """Paths below ours are never the model server's."""
    path = request.url.path
    if request.method not in ("GET", "HEAD") and path.startswith(f"{BASE}/runs"):
        raise ProxyError(
            status=405, message=f"{request.method} is not for {path}", headers={"allow": "GET, HEAD"}
        )
    raise ProxyError(status=404, message=f"no such path: {path}")


async def _page(request: Request) -> Response:
    return _static("index.html", request)


async def _to_page(request: Request) -> Response:
    return RedirectResponse("../ui", status_code=308)


async def _page_file(request: Request) -> Response:
    return _static(request.path_params["name"], request)


def _static(name: str, request: Request) -> Response:
    found = _files().get(name)
    if found is None:
        raise ProxyError(status=404, message=f"no such path: {request.url.path}")
    content, tag = found
    headers = {**_PAGE_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "content-type": _TYPES[Path(name).suffix]})


@cache
def _files() -> Mapping[str, tuple[bytes, str]]:
    """The page's files by name, each with its tag; read once."""
    found = {}
    for path in _UI.iterdir():
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = (content, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found
