"""From the SDK's exceptions to Anabranch's. The only file that knows how the aiohttp transport names its failures.

The transport reports a refused connection and a server that hangs up as timeouts; the aiohttp exception beneath tells
them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anabranch.orchestrator.errors import BackendError, BackendTimeout, BackendUnavailable, MalformedResponse
from anabranch.serving.backends._http import error_from_body, error_from_object, why_not_reached


def translate(error: Exception, where: str) -> BackendError:
    """The error to raise for an exception of the SDK or of its transport."""
    import openai

    if isinstance(error, openai.APIStatusError):
        response = error.response
        return error_from_body(response.status_code, response.content, response.headers)
    if isinstance(error, openai.APIConnectionError) or not isinstance(error, openai.OpenAIError | ValueError):
        return _connection_error(error, where)
    if isinstance(error, openai.APIError) and error.body is not None:
        return error_in_stream(error.body)
    return MalformedResponse(f"{where}: the reply makes no sense: {error}")


def error_in_stream(body: object) -> BackendError:
    """The error for an error object that came in the place of a chunk, after a status of 200."""
    return error_from_object(body if isinstance(body, Mapping) else {"message": str(body)})


def _connection_error(error: BaseException, where: str) -> BackendError:
    import aiohttp

    causes = list(_causes(error))
    beneath = next((cause for cause in causes if isinstance(cause, aiohttp.ClientError)), causes[-1])
    reason = str(beneath) or type(beneath).__name__
    if isinstance(beneath, aiohttp.ServerTimeoutError | TimeoutError):
        return BackendTimeout(f"{where}: no connection in time: {reason}", retryable=True)
    if isinstance(beneath, aiohttp.ClientConnectorError):
        reason = f"no connection ({why_not_reached(beneath)})"
    elif isinstance(beneath, aiohttp.ClientPayloadError):
        reason = "the server broke its reply off in the middle"
    return BackendUnavailable(f"{where}: {reason}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def transport_errors() -> tuple[type[Exception], ...]:
    """What the SDK's calls and streams may raise, by whichever HTTP library this version of it stands on."""
    import importlib

    import openai

    library: Any = importlib.import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])
    import aiohttp

    return (openai.OpenAIError, library.HTTPError, library.StreamError, aiohttp.ClientError, ValueError)
