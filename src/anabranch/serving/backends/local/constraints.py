"""Constrained decoding: how llama.cpp takes a constraint, and whether it kept to it.

llama.cpp (with llguidance, as in xllamacpp) answers a schema or regex that it cannot compile with unconstrained
text, and without an error. So what comes is checked: its first character at once, the whole when the model ends it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from anabranch.orchestrator.errors import RequestRejected, UnsupportedCapability
from anabranch.orchestrator.sampling import Constraint

ALWAYS = frozenset({"json_schema", "ebnf"})
_JSON_STARTS = '{["-0123456789tfn'
# Free white space lets small models write line breaks until their tokens are used up.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def fields(constraint: Constraint) -> dict[str, Any]:
    """The fields of a request that ask for a constraint. `ebnf` is llama.cpp's own dialect, GBNF.

    Raises:
        RequestRejected: the schema is not JSON, or the regex is none.
    """
    if constraint.kind == "ebnf":
        return {"grammar": constraint.source}
    if constraint.kind == "regex":
        return {"grammar": _lark(constraint.source)}
    if constraint.kind == "json_schema":
        return {"json_schema": _schema(constraint.source)}
    raise UnsupportedCapability(f"the embedded engine has no constrained decoding by {constraint.kind}")


def begins_well(constraint: Constraint, text: str) -> bool:
    """Whether a text can be the beginning of what the constraint allows, as far as its first character says."""
    start = text.lstrip()[:1]
    return constraint.kind != "json_schema" or start in _JSON_STARTS


def is_kept(constraint: Constraint, text: str) -> bool:
    """Whether a whole text can be what the constraint allows: not its meaning, but that it was in force at all."""
    try:
        if constraint.kind == "json_schema":
            json.loads(text)
        elif constraint.kind == "regex":
            return re.fullmatch(constraint.source, text) is not None
    except (ValueError, re.error):
        return False
    return True


def not_in_force(constraint: Constraint) -> RequestRejected:
    """The error for a constraint that the engine ignored."""
    return RequestRejected(
        f"the embedded engine cannot enforce this {constraint.kind}: {constraint.source[:120]}"
    )


def _schema(source: str) -> Any:
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise RequestRejected(f"the JSON schema is not JSON: {error}") from error
    return {"x-guidance": _LAYOUT, **schema} if isinstance(schema, dict) else schema


def _lark(source: str) -> str:
    """A regex as a grammar of llguidance: one line, slashes escaped."""
    try:
        re.compile(source)
    except re.error as error:
        raise RequestRejected(f"the regex cannot be read: {error}") from error
    if not source:
        raise RequestRejected("the regex is empty")
    escaped = _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], source)
    return "%llguidance {}\nstart: /" + escaped.replace("\n", r"\n") + "/"
