"""What runs in a process of its own: math-verify. It is imported there only; it brings sympy, and takes a second."""

from __future__ import annotations

import contextlib
import logging
from typing import Any


def warm() -> None:
    """Import it before the clock of the first comparison runs."""
    logging.disable(logging.WARNING)  # it warns that its own time limits are off
    same("1", "2")


def same(gold: str, predicted: str) -> bool | None:
    """Whether math-verify takes two answers for the same; None where it can read one of them not at all."""
    from math_verify import verify

    with contextlib.suppress(Exception):  # sympy raises all there is
        first, second = _read(gold), _read(predicted)
        if first and second:
            return bool(verify(first, second, float_rounding=6, timeout_seconds=None))
    return None


def _read(answer: str) -> Any:
    """As a formula; what is none, as text that may hold one."""
    from math_verify import parse

    framed = answer if "$" in answer or "\\boxed" in answer else f"${answer}$"
    return parse(framed, parsing_timeout=None) or parse(answer, parsing_timeout=None)
