"""Forms of replies for the model server of the tests: JSON, streams, pages; and everything that can go wrong with one.

Faults take their words from what real servers were seen to say.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterable

from upstream import Behaviour, Headers, Reply, Request

SURROGATE = re.compile("[\ud800-\udfff]")
DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream; charset=utf-8"
SERVED: Headers = [
    ("x-ratelimit-remaining-requests", "41"),
    ("openai-processing-ms", "7"),
    ("x-new-header", "of tomorrow"),
    ("set-cookie", "session=secret"),
]
"""Headers of every ordinary reply."""


def text_of(body: object, indent: int | None = None) -> str:
    """JSON; half a surrogate pair stays an escape."""
    text = json.dumps(body, ensure_ascii=False, indent=indent)
    return text if text.isascii() or not SURROGATE.search(text) else json.dumps(body, indent=indent)


def event(body: object, *, name: str | None = None) -> bytes:
    """One event of a stream."""
    data = f"data: {text_of(body)}\n\n".encode()
    return data if name is None else f"event: {name}\n".encode() + data


def whole(body: object, status: int = 200, **headers: str) -> Behaviour:
    """A JSON reply."""
    content = text_of(body, indent=1).encode()
    return content_of(content, status, "application/json", **headers)


def content_of(content: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> Behaviour:
    """A reply of these bytes; an underscore in a header's name stands for a hyphen."""
    named = [
        ("content-type", kind),
        *SERVED,
        *((name.replace("_", "-"), value) for name, value in headers.items()),
    ]

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head(status, named, length=len(content))
        await reply.send(content)
        await reply.end()

    return behave


def stream(
    *events: bytes, done: bool = True, pace_s: float = 0.0, end: str = "well", kind: str = EVENTS
) -> Behaviour:
    """A stream of these bytes.

    Args:
        done: `[DONE]` follows.
        end: `well`, `cut` (the connection breaks), `stall` (nothing more comes).
    """

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head(200, [("content-type", kind), *SERVED])
        for each in events:
            await reply.send(each)
            await asyncio.sleep(pace_s)
        if end == "stall":
            await asyncio.Event().wait()
        if end == "cut":
            reply.cut()
            return
        if done:
            await reply.send(DONE)
        await reply.end()

    return behave


def bytewise(behave: Behaviour) -> Behaviour:
    """The same, each byte by itself."""

    async def slow(request: Request, reply: Reply) -> None:
        reply.bytewise = True
        await behave(request, reply)

    return slow


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One for each request; the last one stays."""
    left = list(behaviours)

    async def behave(request: Request, reply: Reply) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, reply)

    return behave


def gated(gate: asyncio.Event, before: Iterable[bytes], after: Iterable[bytes]) -> Behaviour:
    """A stream that goes on when the gate opens."""

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head(200, [("content-type", EVENTS)])
        for each in before:
            await reply.send(each)
        await gate.wait()
        for each in after:
            await reply.send(each)
        await reply.end()

    return behave


# Faults


def refusal(
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    code: object = None,
    param: str | None = None,
    **headers: str,
) -> Behaviour:
    """An error in OpenAI's envelope."""
    return whole({"error": {"message": message, "type": type, "param": param, "code": code}}, status, **headers)


def flat(status: int, message: str, type: str = "BadRequestError", **headers: str) -> Behaviour:
    """An error as SGLang writes it."""
    return whole(
        {"object": "error", "message": message, "type": type, "param": None, "code": status}, status, **headers
    )


def page(status: int, title: str = "500 Internal Server Error") -> Behaviour:
    """A web page in the place of a reply."""
    html = (
        f"<html><head><title>{title}</title></head><body><h1>{title}</h1><pre>secret stack</pre></body></html>"
    )
    return content_of(html.encode(), status, "text/html")


def gzipped(body: object) -> Behaviour:
    """A reply that is compressed though nobody asked for that."""
    return content_of(gzip.compress(json.dumps(body).encode()), content_encoding="gzip")


async def silent(request: Request, reply: Reply) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def hung_up(request: Request, reply: Reply) -> None:
    """Breaks the connection before a word is said."""
    reply.cut()


def cut_in_body(body: object) -> Behaviour:
    """Breaks the connection in the middle of a JSON reply."""
    content = json.dumps(body).encode()

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head(200, [("content-type", "application/json")], length=len(content))
        await reply.send(content[: len(content) // 2])
        reply.cut()

    return behave
