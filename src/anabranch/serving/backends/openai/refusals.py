"""What one model of a server has turned out to refuse.

Learning is negotiation, not a retry: the same call is asked again at once with one field less, and never twice for the
same field. A field counts as refused only when the server names it and says that it does not know or support it; a
complaint about a value ("temperature must be at most 2") goes to the caller.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.orchestrator.backend import Capabilities
from anabranch.orchestrator.errors import ContextTooLong, RequestRejected, UnsupportedCapability

log = logging.getLogger(__name__)

_TOKEN_CAPS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_DISPENSABLE = frozenset(
    [
        "stream_options",
        "timings_per_token",
        "rid",
        "request_id",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "repeat_penalty",
        "response_format",
        "strict",
    ]
)
"""Asked again without these. Without `response_format` the answer is free text, which callers must be able to read
anyway, as a constrained one may be cut by its token cap."""
_CAPABILITY = {
    "continue_final_message": "prefill",
    "add_generation_prompt": "prefill",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
    "response_format": "json_schema",
    "regex": "regex",
    "guided_regex": "regex",
    "ebnf": "ebnf",
    "grammar": "ebnf",
    "guided_grammar": "ebnf",
}
"""What a server lacks that refuses a field. Unless the field is dispensable, the call cannot go on without it."""
_SPELLINGS = {"json_schema": "response_format", "response format": "response_format"}
_REFUSES = re.compile(
    r"not supported|unsupported|n[o']t support|unrecogni[sz]ed|unknown|unexpected|extra inputs"
    r"|extra fields|not permitted|not allowed|unavailable",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Refusals:
    """Names of fields that are not to be sent to this model again."""

    fields: set[str] = field(default_factory=set)

    def without(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request body without what was refused; the token cap goes by its other name."""
        for name in self.fields & body.keys():
            value = body.pop(name)
            if name in _TOKEN_CAPS and _TOKEN_CAPS[name] not in self.fields:
                body[_TOKEN_CAPS[name]] = value
        if "strict" in self.fields and "response_format" in body:
            body["response_format"]["json_schema"]["strict"] = False
        return body

    def learn(self, body: Mapping[str, Any], error: RequestRejected) -> bool:
        """Take note of a rejected request; whether to ask again without the field that the server refused.

        Raises:
            UnsupportedCapability: the call cannot do without that field.
        """
        name = _refused_field(body, error)
        if name is None:
            return False
        if name not in self.fields:
            log.warning("the server refuses %r: %s", name, error)
        self.fields.add(name)
        if self.forbid(name):
            raise UnsupportedCapability(f"the server has no {_CAPABILITY[name]}: {error}") from error
        return True

    def forbid(self, *names: str) -> bool:
        """Whether one of these fields was refused that no call can do without."""
        return any(name in self.fields and name not in _DISPENSABLE and name in _CAPABILITY for name in names)

    def reduce(self, capabilities: Capabilities) -> Capabilities:
        """Capabilities without what was refused."""
        lost = {_CAPABILITY[name] for name in self.fields & _CAPABILITY.keys()}
        return replace(
            capabilities,
            prefill=capabilities.prefill and "prefill" not in lost,
            constraints=capabilities.constraints - lost,
            top_logprobs=0 if "logprobs" in lost else capabilities.top_logprobs,
            labels=capabilities.labels and "logprobs" not in lost,
        )


def _refused_field(body: Mapping[str, Any], error: RequestRejected) -> str | None:
    """The field of the request that the server does not know or support, if that is what it says."""
    message = str(error)
    if isinstance(error, ContextTooLong) or error.status_code not in (400, 422):
        return None
    if "invalid schema" in message.lower() and _is_strict(body):
        return "strict"
    if not _REFUSES.search(message):
        return None
    known = (_DISPENSABLE | _CAPABILITY.keys() | _TOKEN_CAPS.keys()) & body.keys()
    named = [(at, name) for name in known if (at := _position(name, message)) >= 0]
    named += [(at, n) for s, n in _SPELLINGS.items() if n in body and (at := _position(s, message)) >= 0]
    param = str(_details(error).get("param") or "").partition(".")[0]
    return param if param in known else min(named, default=(0, None))[1]


def _is_strict(body: Mapping[str, Any]) -> bool:
    wanted = body.get("response_format")
    return bool(wanted and wanted["json_schema"]["strict"])


def _position(name: str, message: str) -> int:
    found = re.search(rf"\b{re.escape(name)}\b", message, re.IGNORECASE)
    return found.start() if found else -1


def _details(error: RequestRejected) -> Mapping[str, Any]:
    body = error.body or {}
    nested = body.get("error")
    return nested if isinstance(nested, Mapping) else body
