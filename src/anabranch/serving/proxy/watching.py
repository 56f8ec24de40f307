"""Watching a reply that passes through: whether it is valid, without changing a byte of it. Pure.

Invariant: what goes out is what came in, whole events of it: of an event that is cut off nothing goes out, since half
a JSON object crashes clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anabranch.orchestrator.errors import BackendError, MalformedResponse
from anabranch.serving.backends._http import error_from_object
from anabranch.serving.proxy.errors import well_formed

_DONE = b"data: [DONE]"
_ERRORS = (
    b'data: {"error"',
    b'data:{"error"',
    b'data: {"object":"error"',
    b'data: {"object": "error"',
    b"error:",
)


class StreamWatcher:
    """Sees a stream of server-sent events pass.

    Attributes:
        done: `[DONE]` came.
        failed: an error event that clients understand came.
        broken: an error came in a shape that clients overlook; its message.
        rest: the beginning of an event that is not there as a whole yet.
    """

    def __init__(self) -> None:
        self.done = self.failed = False
        self.broken: str | None = None
        self.rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take what came; gives what may go out by now: whole events."""
        held = self.rest + chunk if self.rest else chunk
        end = max(held.rfind(b"\n\n") + 2, held.rfind(b"\r\n\r\n") + 4 if b"\r" in held else 0)
        if end < 2:
            self.rest = held
            return b""
        whole, self.rest = (held, b"") if end == len(held) else (held[:end], held[end:])
        self._look(whole)
        return whole

    def finish(self) -> bytes:
        """The stream has ended, unbroken: what is left is whole as well."""
        whole, self.rest = self.rest, b""
        self._look(whole)
        return whole

    def _look(self, events: bytes) -> None:
        for line in events.splitlines():
            if line.startswith(_DONE):
                self.done = True
            elif line.startswith(_ERRORS):
                self._error(line)

    def _error(self, line: bytes) -> None:
        field, _, text = line.partition(b":")
        parsed = _object(text)
        if field == b"data" and parsed is not None and well_formed(parsed):
            self.failed = True
        elif parsed is None or parsed.get("error", True) is not None:
            self.broken = str(error_from_object(parsed or {"message": text.decode(errors="replace").strip()}))


def only_comments(events: bytes) -> bool:
    """Whether nothing but comments has come yet."""
    return all(line.startswith(b":") for line in events.splitlines() if line)


def error_at_once(head: bytes) -> BackendError | None:
    """The error in the first event of a stream, or in what came in the place of a stream; None when there is none."""
    for line in head.splitlines():
        if line.startswith(b":") or not line.strip():
            continue
        field, _, text = line.partition(b":")
        parsed = _object(text if field in (b"data", b"error") else line)
        if field == b"event":
            continue
        if line.startswith(_DONE):
            return _no_events(head)
        if parsed is not None and (field == b"error" or _is_error(parsed)):
            return error_from_object(parsed)
        return None if field in (b"data", b"id", b"retry") else _no_events(head)
    return _no_events(head)


def error_in_body(body: bytes, *, wants: str | None) -> BackendError | None:
    """What is wrong with the body of a successful reply.

    Args:
        wants: name of the field that has to be a list with something in it; None where any object will do.
    """
    parsed = _object(body)
    if parsed is None:
        return MalformedResponse("the model server's reply is no JSON object")
    if _is_error(parsed):
        return error_from_object(parsed)
    if wants is not None and not (isinstance(parsed.get(wants), list) and parsed[wants]):
        return MalformedResponse(f"the model server's reply has no {wants}")
    return None


def _is_error(body: Mapping[str, Any]) -> bool:
    return body.get("object") == "error" or (
        isinstance(body.get("error"), dict | str) and "choices" not in body
    )


def _no_events(head: bytes) -> BackendError:
    said = " ".join(head[:200].decode("utf-8", errors="replace").split())
    return MalformedResponse(f"the model server sent no events: {said!r}")


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
