"""Errors keep the server's status and say whether to try again."""

from __future__ import annotations

import pytest

from anabranch.orchestrator import errors


@pytest.mark.parametrize(
    ("status", "message", "kind", "retryable"),
    [
        (400, "bad temperature", errors.RequestRejected, False),
        (400, "longer than the model's context length (8192 tokens)", errors.ContextTooLong, False),
        (401, "key", errors.AuthenticationFailed, False),
        (403, "no", errors.AuthenticationFailed, False),
        (404, "no model", errors.ModelNotFound, False),
        (418, "teapot", errors.RequestRejected, False),
        (429, "slow down", errors.BackendOverloaded, True),
        (500, "oops", errors.BackendError, False),
        (502, "bad gateway", errors.BackendUnavailable, True),
        (503, "full", errors.BackendOverloaded, True),
        (504, "late", errors.BackendTimeout, False),
    ],
)
def test_a_status_becomes_the_error_that_says_what_to_do(
    status: int, message: str, kind: type[errors.BackendError], retryable: bool
) -> None:
    """The status is the server's own; retrying is only for what is temporary."""
    error = errors.error_for_status(status, message, retry_after=3.0)
    assert type(error) is kind
    assert (error.status_code, error.retryable, error.retry_after) == (status, retryable, 3.0)
    assert str(error) == message


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every class stands in the docstring, and every class is one of ours."""
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert all(issubclass(kind, errors.AnabranchError) for kind in classes)
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in classes)
