"""Error replies of servers and proxies, in all their shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.orchestrator.errors import (
    AuthenticationFailed,
    BackendError,
    BackendOverloaded,
    BackendUnavailable,
    ContextTooLong,
    ModelNotFound,
    RequestRejected,
)
from anabranch.serving.backends._http import error_from_body, error_from_object, retry_after

NGINX = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<h1>502</h1>nginx</body></html>"
TRACE = (
    'Traceback (most recent call last):\n  File "/srv/app.py", line 3, in f\n    g()\nValueError: no such thing'
)
FLAT = {"object": "error", "message": "bad", "type": "Bad Request", "param": None, "code": 400}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (FLAT, "bad"),
        ({"error": {"message": "bad", "type": "invalid_request_error", "code": None}}, "bad"),
        ({"error": "bad"}, "bad"),
        ({"message": "bad"}, "bad"),
        ({"detail": "bad"}, "bad"),
        ({"detail": [{"loc": ["body", "top_p"], "msg": "too big", "type": "x"}]}, "top_p: too big"),
        ({"error": {"message": {"message": "bad"}}}, "bad"),
        ({"object": "error"}, "HTTP 400 without a reason"),
    ],
)
def test_the_message_is_found_in_every_shape(body: dict[str, Any], message: str) -> None:
    """Flat, nested, FastAPI's and bare error objects give their message, and are kept whole as the body."""
    error = error_from_body(400, json.dumps(body).encode(), {})
    assert (type(error), str(error), error.status_code) == (RequestRejected, message, 400)
    assert error.body == body


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (401, AuthenticationFailed, False),
        (404, ModelNotFound, False),
        (429, BackendOverloaded, True),
        (502, BackendUnavailable, True),
        (503, BackendOverloaded, True),
        (500, BackendError, False),
    ],
)
def test_the_status_decides_the_kind(status: int, kind: type[BackendError], retryable: bool) -> None:
    """Each status becomes the error that says what the caller can do, and keeps the status."""
    error = error_from_body(status, b"no", {})
    assert (type(error), error.status_code, error.retryable) == (kind, status, retryable)


def test_a_page_gives_its_title_only() -> None:
    """An HTML page is never shown: its title is."""
    assert str(error_from_body(502, NGINX, {})) == "an HTML page instead of an API's reply: 502 Bad Gateway"


def test_stack_traces_are_left_out() -> None:
    """A trace after a message is cut off; of a bare trace only the exception remains."""
    assert str(error_from_body(500, f"went wrong\n{TRACE}".encode(), {})) == "went wrong"
    assert str(error_from_body(500, TRACE.encode(), {})) == "ValueError: no such thing"
    sglang = 'x: wrong\n\n  File "…/http_server.py", line 1870, in openai_v1_chat_completions\n    POST /v1'
    assert str(error_from_object({"object": "error", "message": sglang, "code": 400})) == "x: wrong"


def test_long_messages_are_cut() -> None:
    """A message is one line of bounded length."""
    message = str(error_from_body(400, b"a \n" * 10_000, {}))
    assert len(message) <= 400
    assert "\n" not in message


def test_an_empty_or_broken_body_still_says_the_status() -> None:
    """No body, cut JSON and bytes that are no text do not get in the way of the error."""
    assert str(error_from_body(503, b"", {})) == "HTTP 503 without a reason"
    assert error_from_body(400, b'{"error": {"mess', {}).status_code == 400
    assert error_from_body(400, b"\xff\xfe\x00", {}).status_code == 400


def test_an_error_within_a_stream_brings_its_own_status() -> None:
    """Where the stream had begun with 200, the object's code counts; without one it is 502."""
    too_long = {"error": {"message": "longer than the model's context length (8192 tokens).", "code": 400}}
    assert isinstance(error_from_object(too_long), ContextTooLong)
    assert error_from_object({"error": {"message": "x", "code": "503"}}).status_code == 503
    assert error_from_object({"error": {"message": "x", "code": "model_busy"}}).status_code == 502


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "-2"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:10 GMT"}, 10.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """`Retry-After` may be seconds, a fraction, or a date; what cannot be read is left out."""
    assert retry_after(headers, now=60.0) == seconds


def test_retry_after_reaches_the_error() -> None:
    """The error carries the wait that the server asked for."""
    assert error_from_body(429, b"slow down", {"Retry-After": "7"}).retry_after == 7.0
