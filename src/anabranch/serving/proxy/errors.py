"""Errors on the wire: every one in OpenAI's envelope, with the status that tells the client what to do.

Invariant: what stands in an envelope was either said by the model server or names what is wrong with the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.orchestrator.errors import (
    AnabranchError,
    AuthenticationFailed,
    BackendError,
    BackendOverloaded,
    BackendTimeout,
    ConfigurationError,
    ContextTooLong,
    InvalidParameter,
    ModelNotFound,
    TooFewSucceeded,
    UnknownName,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    502: "bad_gateway",
    503: "overloaded",
    504: "timeout",
}


@dataclass(kw_only=True, eq=False)
class ProxyError(Exception):
    """A request ends with an error. Raised anywhere in the proxy; one place turns it into a reply.

    Attributes:
        param: the field of the request that is wrong, where one is.
        retry_after: seconds, where waiting helps.
        body: the server's own well-formed envelope, sent as it stands.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def envelope(self) -> dict[str, Any]:
        """The body of the reply."""
        if self.body is not None:
            return dict(self.body)
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(
                    self.status, "invalid_request_error" if self.status < 500 else "server_error"
                ),
                "param": self.param,
                "code": self.code or _CODES.get(self.status),
            }
        }

    def reply_headers(self) -> dict[str, str]:
        """The headers that go with it."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(max(0, math.ceil(self.retry_after)))
        return headers


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ProxyError:
    """A 400: the client must change the request."""
    return ProxyError(status=400, message=message, param=param, code=code)


def of_exception(error: BaseException) -> ProxyError:
    """What a client is told of an error of the engine's. Of a bug it learns no details: those are in the log."""
    if isinstance(error, ProxyError):
        return error
    if isinstance(error, BackendError):
        return of_backend(error)
    if isinstance(error, TooFewSucceeded) and error.failures:
        return of_exception(error.failures[0])
    if isinstance(error, UnknownName):
        code = "model_not_found" if error.kind == "model" else f"unknown_{error.kind}"
        return bad_request(str(error), param=error.kind, code=code)
    if isinstance(error, InvalidParameter):
        return bad_request(str(error), param=error.field)
    if isinstance(error, ConfigurationError):
        return bad_request(str(error), code="unsupported")
    if isinstance(error, AnabranchError):
        return ProxyError(status=502, message=str(error))
    return ProxyError(
        status=500, message="internal error of the proxy; its log has the details", code="internal"
    )


def of_backend(error: BackendError) -> ProxyError:
    """A server's own 4xx keeps its status and its words; what is the server's fault is a 502, 503 or 504.

    429 stays 429, with its `Retry-After`. A 5xx in OpenAI's envelope keeps its body too.
    """
    status = error.status_code
    if not 400 <= status < 500:
        status = _status_of_failure(error)
    body = error.body if error.body is not None and well_formed(error.body) else None
    return ProxyError(
        status=status, message=str(error), code=_code_of(error), retry_after=error.retry_after, body=body
    )


def _status_of_failure(error: BackendError) -> int:
    if isinstance(error, BackendOverloaded):
        return 503
    return 504 if isinstance(error, BackendTimeout) else 502


def _code_of(error: BackendError) -> str | None:
    """The server's own code, or the one that clients know for this kind of error."""
    if error.body is not None:
        inner = error.body.get("error", error.body)
        code = inner.get("code") if isinstance(inner, Mapping) else None
        if isinstance(code, str) and code and not code.isdigit():
            return code
    if isinstance(error, ContextTooLong):
        return "context_length_exceeded"
    if isinstance(error, ModelNotFound):
        return "model_not_found"
    return "invalid_api_key" if isinstance(error, AuthenticationFailed) else None


def well_formed(body: Mapping[str, Any]) -> bool:
    """Whether a body is an error in OpenAI's envelope."""
    inner = body.get("error")
    return isinstance(inner, Mapping) and isinstance(inner.get("message"), str) and "type" in inner
