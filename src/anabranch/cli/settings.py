"""From words on the command line and in the environment to values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from anabranch.orchestrator.errors import InvalidParameter


def pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """`name=value` words by name. Raises InvalidParameter when one is none, or a name comes twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidParameter(option, f"write name=value, got {word!r}")
        if name.strip() in found:
            raise InvalidParameter(option, f"{name.strip()} is given twice")
        found[name.strip()] = value
    return found


def parameters(words: Sequence[str]) -> dict[str, Any]:
    """A strategy's parameters. Lists, objects and null are JSON; the strategy reads numbers and booleans itself."""
    return {name: _value(name, text) for name, text in pairs("--param", words).items()}


def _value(name: str, text: str) -> Any:
    if text != "null" and not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidParameter("--param", f"{name}: not valid JSON: {error}") from error


def question_text(words: str) -> str:
    """The question; `-` reads it from standard input. Raises InvalidParameter when there is none."""
    if words != "-":
        return words
    text = sys.stdin.buffer.read()
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidParameter("question", f"standard input is not UTF-8: {error}") from error


def configure(backend: str) -> None:
    """Let the environment say what the command line says, for all that goes by it: which server a key is for."""
    os.environ["ANABRANCH_BACKEND"] = backend


def nothing_configured(backend: str | None) -> bool:
    """Whether nobody named a server, so that the embedded model answers."""
    return not (backend or os.environ.get("ANABRANCH_BACKEND") or os.environ.get("OPENAI_BASE_URL"))
