"""From a `Call` to the body of a chat completion. Pure.

Reasoning that a server reported apart from the text is not sent back, as OpenAI's API has it: a turn whose text has
begun is continued from its text alone, and one that was cut inside its reasoning cannot be continued.
"""

from __future__ import annotations

from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import UnsupportedCapability
from anabranch.serving.backends.openai.dialects import Dialect, Fields
from anabranch.serving.backends.openai.refusals import Refusals


def build(call: Call, model: str, dialect: Dialect, refusals: Refusals) -> Fields:
    """The request body. Raises UnsupportedCapability when this kind of server has no way to say it."""
    body: Fields = {
        "model": model,
        "messages": [message.to_wire() for message in call.branch.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **dialect.always,
        **{dialect.spellings.get(name, name): value for name, value in call.sampling.given().items()},
    }
    if dialect.rid_field:
        body[dialect.rid_field] = call.rid
    if call.max_tokens is not None:
        body[dialect.token_cap] = call.max_tokens
    if call.stop and not scans_stops(call, dialect):
        body["stop"] = list(call.stop)
    body |= _prefill(call.branch, dialect, refusals, body["messages"])
    body |= _constraint(call, dialect, refusals)
    body |= _logprobs(call, dialect, refusals)
    return refusals.without(body | dict(call.sampling.extra))


def scans_stops(call: Call, dialect: Dialect) -> bool:
    """Whether the stop strings of this call are looked for on our side."""
    most = dialect.capabilities.max_stops
    return not dialect.names_stops or (most is not None and len(call.stop) > most)


def _prefill(branch: Branch, dialect: Dialect, refusals: Refusals, messages: list[Any]) -> Fields:
    """Append the assistant's turn so far, to be continued; the fields that ask for that."""
    if branch.text:
        if not dialect.capabilities.prefill or refusals.forbid(*dialect.continues):
            raise UnsupportedCapability("this server cannot continue an assistant turn that has begun")
        messages.append({"role": "assistant", "content": branch.text})
        return dict(dialect.continues)
    if any(segment.reasoning for segment in branch.segments):
        raise UnsupportedCapability("a turn cut inside its reasoning cannot be continued over this API")
    return {}


def _constraint(call: Call, dialect: Dialect, refusals: Refusals) -> Fields:
    if call.constraint is None:
        return {}
    fields_of = dialect.constraints.get(call.constraint.kind)
    if fields_of is None:
        raise UnsupportedCapability(f"this server knows no {call.constraint.kind} constraint")
    fields = fields_of(call.constraint.source)
    if refusals.forbid(*fields):
        raise UnsupportedCapability(f"this server has refused a {call.constraint.kind} constraint")
    return fields


def _logprobs(call: Call, dialect: Dialect, refusals: Refusals) -> Fields:
    """Alternatives of each token; a scoring call writes one token, greedily, and reads as many as there are."""
    if not call.labels and not call.top_logprobs:
        return {}
    most = dialect.capabilities.top_logprobs
    if not most or refusals.forbid("logprobs", "top_logprobs"):
        raise UnsupportedCapability("this server reports no log-probabilities")
    if call.labels:
        return {"logprobs": True, "top_logprobs": most, dialect.token_cap: 1, "temperature": 0}
    return {"logprobs": True, "top_logprobs": min(call.top_logprobs, most)}
