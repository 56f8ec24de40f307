"""Every error that Anabranch raises, named for what the caller can do about it.

    AnabranchError
    ├── ConfigurationError        the request or the set-up is wrong: change it
    │   ├── UnknownName           no such strategy, backend or role (`known` lists those there are)
    │   ├── InvalidParameter      a parameter has a bad value (`field` names it)
    │   ├── UnsupportedCapability the backend cannot do what the call needs
    │   └── MissingExtra          an optional dependency is not installed
    ├── GraphError                a plan is not a usable graph (`node` names the culprit)
    ├── BudgetExhausted           a limit of the run was reached (`limit` names it)
    ├── TooFewSucceeded           more branches failed than the failure policy allows
    └── BackendError              a model server failed; has `status_code` and `retryable`
        ├── BackendUnavailable    not reachable, or it died in the middle (502)
        ├── BackendOverloaded     asks to come back later: wait `retry_after` seconds (429, 503)
        ├── BackendTimeout        no answer, or no next token, in time (504)
        ├── AuthenticationFailed  set the right key (401, 403)
        ├── ModelNotFound         name a model that the server has (404)
        ├── RequestRejected       the server refuses this request as it is (4xx)
        │   └── ContextTooLong    shorten the prompt or the answer (400)
        └── MalformedResponse     the server's reply makes no sense (502)

An error text is never an answer: whatever goes wrong with a request or a server leaves the engine as one of these.
A bug in a strategy leaves it as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Limit = Literal["tokens", "branches", "depth", "deadline"]
"""What a budget limits."""


class AnabranchError(Exception):
    """Root of everything that Anabranch raises on purpose."""


class ConfigurationError(AnabranchError):
    """The request or the set-up is wrong; repeating it will not help."""


class UnknownName(ConfigurationError):
    """No strategy, backend or role is registered under this name."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(known) or 'none'}")


class InvalidParameter(ConfigurationError):
    """A parameter has a bad value."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


class UnsupportedCapability(ConfigurationError):
    """The backend cannot do what the call or the strategy needs."""


class MissingExtra(ConfigurationError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs an optional package: pip install 'anabranch[{extra}]'")


class GraphError(AnabranchError):
    """A plan is not a usable task graph."""

    def __init__(self, node: str, problem: str) -> None:
        self.node = node
        super().__init__(f"node {node!r}: {problem}")


class BudgetExhausted(AnabranchError):
    """A limit of the run's budget was reached. Only strategies see it: a run then answers with its best."""

    def __init__(self, limit: Limit, detail: str) -> None:
        self.limit = limit
        super().__init__(f"budget exhausted ({limit}): {detail}")


class TooFewSucceeded(AnabranchError):
    """More branches failed than the failure policy allows; the first failure is the cause."""

    def __init__(self, succeeded: int, needed: int, failures: Sequence[BaseException]) -> None:
        self.succeeded, self.needed, self.failures = succeeded, needed, tuple(failures)
        first = f"; first failure: {failures[0]}" if failures else ""
        super().__init__(f"{succeeded} branches succeeded, {needed} needed{first}")


class BackendError(AnabranchError):
    """A model server failed.

    Attributes:
        status_code: HTTP status as the server gave it, or the one a proxy should answer with.
        retryable: whether the same request may succeed when sent again.
        retry_after: seconds the server asked to wait, or None.
        body: the server's own error object, where it sent one.
    """

    status_code: int = 502
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        if status_code is not None:
            self.status_code = status_code
        if retryable is not None:
            self.retryable = retryable
        self.retry_after = retry_after
        self.body = body


class BackendUnavailable(BackendError):
    """The server is not reachable, or it died in the middle of a reply."""

    status_code, retryable = 502, True


class BackendOverloaded(BackendError):
    """The server asks to come back later."""

    status_code, retryable = 503, True


class BackendTimeout(BackendError):
    """No answer, or no next token, came in time."""

    status_code = 504


class AuthenticationFailed(BackendError):
    """The server wants another key."""

    status_code = 401


class ModelNotFound(BackendError):
    """The server has no such model or path."""

    status_code = 404


class RequestRejected(BackendError):
    """The server refuses this request as it is."""

    status_code = 400


class ContextTooLong(RequestRejected):
    """Prompt and answer together do not fit the model's context."""


class MalformedResponse(BackendError):
    """The server's reply makes no sense (HTML, cut JSON, no choices)."""


_BY_STATUS: dict[int, type[BackendError]] = {
    401: AuthenticationFailed,
    403: AuthenticationFailed,
    404: ModelNotFound,
    408: BackendTimeout,
    429: BackendOverloaded,
    502: BackendUnavailable,
    503: BackendOverloaded,
    504: BackendTimeout,
    529: BackendOverloaded,
}
_CONTEXT_HINTS = (
    "context length",
    "context size",
    "context window",
    "maximum context",
    "context_length_exceeded",
)


def error_for_status(
    status_code: int,
    message: str,
    *,
    retry_after: float | None = None,
    body: Mapping[str, Any] | None = None,
) -> BackendError:
    """The error that stands for an HTTP reply: 4xx are rejected requests, 5xx are server failures."""
    if status_code in (400, 413, 422) and any(hint in message.lower() for hint in _CONTEXT_HINTS):
        kind: type[BackendError] = ContextTooLong
    elif status_code in _BY_STATUS:
        kind = _BY_STATUS[status_code]
    else:
        kind = RequestRejected if 400 <= status_code < 500 else BackendError
    return kind(message, status_code=status_code, retry_after=retry_after, body=body)
