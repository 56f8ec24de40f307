"""What the command line says when something goes wrong, and with which exit code it ends.

    0    it worked
    1    the server or the run failed
    2    the command, its options or the set-up are wrong
    3    there is an answer, but the budget or the deadline cut it short
    130  stopped by Ctrl-C (143: by a termination signal)
    141  whoever read the output went away

An error is one line on standard error, with what to do about it. ANABRANCH_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from anabranch.cli.text import one_line
from anabranch.orchestrator import errors

OK, FAILED, USAGE, CUT_SHORT, INTERRUPTED, TERMINATED, PIPE_CLOSED = 0, 1, 2, 3, 130, 143, 141

_FIXES: tuple[tuple[type[errors.AnabranchError], str], ...] = (
    (errors.BackendUnavailable, "is the server running? `anabranch doctor` shows what can be reached"),
    (errors.BackendOverloaded, "try again later"),
    (errors.BackendTimeout, "the server may be overloaded; try again, or ask for less with --max-tokens"),
    (
        errors.AuthenticationFailed,
        "set ANABRANCH_API_KEY for --backend, OPENAI_API_KEY for OpenAI's own, ?key=VARIABLE in any other URL",
    ),
    (errors.ModelNotFound, "name a model that the server has with --model; `anabranch doctor` lists them"),
    (errors.ContextTooLong, "shorten the question, or lower --max-tokens"),
)


class Terminated(BaseException):
    """A termination signal arrived."""


def tell(message: str, kind: str = "") -> None:
    """A line on standard error, marked as ours."""
    mark = f"anabranch: {kind}: " if kind else "anabranch: "
    typer.echo(mark + one_line(message), err=True)


@contextmanager
def told() -> Iterator[None]:
    """Turn whatever is raised inside into a line and an exit code.

    Raises:
        typer.Exit: with the code, in place of what was raised.
    """
    try:
        yield
    except typer.Exit:
        raise
    except BaseException as error:
        if os.environ.get("ANABRANCH_DEBUG"):
            raise
        raise typer.Exit(_tell(_single(error))) from None


def _single(error: BaseException) -> BaseException:
    """What a group with one member holds."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _tell(error: BaseException) -> int:
    """Say what went wrong; gives the exit code."""
    match error:
        case KeyboardInterrupt():
            tell("stopped")
            return INTERRUPTED
        case Terminated():
            return TERMINATED
        case BrokenPipeError():
            _close_output()
            return PIPE_CLOSED
        case errors.ConfigurationError():
            tell(str(error), "error")
            return USAGE
        case errors.AnabranchError():
            tell(with_fix(error), "error")
            return FAILED
        case _ if _is_usage_error(error):
            tell(_usage(error), "error")
            return USAGE
        case _:
            problem = f"{type(error).__name__}: {error}"
            tell(f"unexpected {problem}; ANABRANCH_DEBUG=1 shows where it came from", "error")
            return FAILED


def with_fix(error: errors.AnabranchError) -> str:
    """What went wrong, and what to do about it."""
    fix = next((fix for kind, fix in _FIXES if isinstance(error, kind)), None)
    return f"{error}; {fix}" if fix else str(error)


def _is_usage_error(error: BaseException) -> bool:
    # typer has brought click along under two names, so its classes are known by what they can do
    return isinstance(error, typer.BadParameter.__bases__) and hasattr(error, "format_message")


def _usage(error: Any) -> str:
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "anabranch"
    return f"{error.format_message().rstrip('.')}; see `{command} --help`"


def _close_output() -> None:
    """Keep the interpreter from complaining about the broken pipe once more when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
