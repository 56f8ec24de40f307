"""Server-sent events as OpenAI's clients read them, and a reply that is made of such."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.types import Send

from anabranch.orchestrator.errors import AnabranchError
from anabranch.serving.proxy.errors import ProxyError, of_exception

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, but the proxies on the way see that the connection is alive."""
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def json_bytes(body: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair, which a model may write and UTF-8 has not, stays an escape."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":")).encode()


def event(body: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """One event."""
    data = b"data: " + json_bytes(body) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def error_event(problem: ProxyError) -> bytes:
    """The event that tells of an error in mid-stream."""
    return event(problem.envelope())


async def send_stream(
    send: Send,
    frames: AsyncGenerator[bytes],
    *,
    headers: Callable[[], Mapping[str, str]],
    failed: Callable[[ProxyError], bytes] = error_event,
) -> ProxyError | None:
    """Send a reply of events. Its status goes out with the first of them, so until then an error has one of its own.

    Args:
        headers: asked when the first frame is there.
        failed: the frames for an error in mid-stream. No `[DONE]` follows: the answer is not done.

    Returns:
        The error that ended it in mid-stream.
    """
    begun, problem = False, None
    async with aclosing(frames):
        try:
            async for frame in frames:
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": _raw(headers())})
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except Exception as error:
            if not begun:
                raise
            if not isinstance(error, ProxyError | AnabranchError):
                log.exception("a stream failed")
            problem = of_exception(error)
            await send({"type": "http.response.body", "body": failed(problem), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return problem


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in {**_HEADERS, **headers}.items()
    ]
