"""What a server's error reply means, whatever its shape: one function from a body to a `BackendError`.

It understands flat error objects (SGLang), `{"error": {…}}` (OpenAI), `{"error": "…"}`, `{"detail": …}` (FastAPI),
HTML pages of proxies in between, and plain text. It sends nothing and knows no client library.

Invariant: the message is one short line: never a page, never a stack trace.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any

from anabranch.orchestrator.errors import BackendError, error_for_status

_LONGEST_MESSAGE = 400
_LONGEST_BODY = 64 * 1024
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TRACE = re.compile(r"Traceback \(most recent call last\)|^\s*File \"[^\"]*\", line \d+", re.MULTILINE)


def error_from_body(status: int, body: bytes, headers: Mapping[str, str]) -> BackendError:
    """The error in an HTTP reply with an error status.

    Args:
        status: the HTTP status.
        body: what came, as it came; may be empty or cut.
        headers: the reply's headers; `Retry-After` (seconds or a date) and `retry-after-ms` are kept.
    """
    text = body[:_LONGEST_BODY].decode("utf-8", errors="replace").strip()
    parsed = _object(text)
    if parsed is not None:
        return error_from_object(parsed, status=status, headers=headers)
    message = _of_page(text) if text.startswith("<") else _one_line(text)
    return error_for_status(status, message or _nameless(status), retry_after=retry_after(headers))


def error_from_object(
    body: Mapping[str, Any], *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> BackendError:
    """The error in an error object, as it stands in a body or in the place of a chunk of a stream.

    Args:
        status: the HTTP status; None where the stream had begun with 200, the object's own code counts then (502
            where it has none).
    """
    if status is None:
        status = _code(body) or 502
    message = _one_line(_message(body)) or _nameless(status)
    return error_for_status(status, message, retry_after=retry_after(headers or {}), body=body)


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds that the server asked to wait; None where it did not, or not in a way that can be read.

    Args:
        now: Unix time to count from where a date is given; the clock's where None.
    """
    named = {
        name.lower(): value.strip() for name, value in headers.items() if name.lower().startswith("retry-after")
    }
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(named[name]) * unit)
        except (KeyError, ValueError):
            continue
    try:
        at = parsedate_to_datetime(named["retry-after"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, at - (time.time() if now is None else now))


def why_not_reached(error: BaseException) -> str:
    """What stood in the way of a connection, in the system's words: asyncio's own repeat the address."""
    cause = error.__cause__ or error
    said = getattr(cause, "strerror", None) or str(cause)
    number = getattr(cause, "errno", None)
    return os.strerror(number) if number and said.startswith("Connect call failed") else said


def _object(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _message(body: Mapping[str, Any]) -> str:
    """The text in an error object: the innermost `message`, `error` or `detail`."""
    for name in ("error", "message", "detail"):
        value = body.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, Mapping) and (text := _message(value)):
            return text
        if isinstance(value, list) and value:
            return "; ".join(_complaint(item) for item in value)
    return ""


def _complaint(item: object) -> str:
    """One of FastAPI's validation errors, as `field: what is wrong`."""
    if not isinstance(item, Mapping):
        return str(item)
    where = ".".join(str(part) for part in item.get("loc", ()) if part != "body")
    return f"{where}: {item.get('msg', '')}" if where else str(item.get("msg", item))


def _code(body: Mapping[str, Any]) -> int | None:
    """The HTTP status that an error object names, if it does."""
    nested = body.get("error")
    for source in (nested if isinstance(nested, Mapping) else {}, body):
        for name in ("code", "status_code", "status"):
            value = source.get(name)
            if isinstance(value, str) and value.isdigit():
                value = int(value)
            if isinstance(value, int) and 400 <= value <= 599:
                return value
    return None


def _of_page(text: str) -> str:
    """What an HTML page says: its title."""
    title = _TITLE.search(text)
    said = _one_line(unescape(title.group(1))) if title else ""
    return f"an HTML page instead of an API's reply: {said or 'no title'}"


def _one_line(text: str) -> str:
    """Text on one line, of bounded length, without a stack trace; of a bare trace its last line, the exception."""
    trace = _TRACE.search(text)
    if trace is not None:
        text = text[: trace.start()].strip() or text.strip().rpartition("\n")[2]
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


def _nameless(status: int) -> str:
    return f"HTTP {status} without a reason"
