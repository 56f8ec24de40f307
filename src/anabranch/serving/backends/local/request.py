"""From a call to the body of llama.cpp's `/completion`."""

from __future__ import annotations

from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.sampling import Constraint
from anabranch.serving.backends.local import constraints
from anabranch.serving.backends.local.prompts import TEMPLATE_OPTIONS
from anabranch.serving.backends.local.slots import Tokens

TOP_LOGPROBS = 100
PROBE_ANSWER = "7"
_RENAMED = {"repetition_penalty": "repeat_penalty"}


def completion(call: Call, prompt: Tokens, slot: int) -> dict[str, Any]:
    """The body of the call itself. Raises RequestRejected for a constraint that cannot be read."""
    sampling = {_RENAMED.get(name, name): value for name, value in call.sampling.given().items()}
    extra = {name: value for name, value in call.sampling.extra.items() if name != TEMPLATE_OPTIONS}
    body = {
        **_base(prompt, slot),
        "n_predict": -1 if call.max_tokens is None else call.max_tokens,
        "return_tokens": True,
        **sampling,
        **extra,
    }
    if call.stop:
        body["stop"] = list(call.stop)
    if call.top_logprobs:
        body["n_probs"] = call.top_logprobs
    if call.constraint is not None:
        body |= constraints.fields(call.constraint)
    return body


def warm_up(prompt: Tokens, slot: int) -> dict[str, Any]:
    """Computes all but the last token of a prompt into a slot: the call itself needs one to begin with."""
    return {**_base(prompt[:-1], slot), "n_predict": 0, "temperature": 0.0}


def next_token(prompt: Tokens, slot: int, alternatives: int) -> dict[str, Any]:
    """Asks for the most likely next tokens."""
    return {**_base(prompt, slot), "n_predict": 1, "temperature": 0.0, "n_probs": alternatives}


def _base(prompt: Tokens, slot: int) -> dict[str, Any]:
    return {"prompt": prompt, "id_slot": slot, "cache_prompt": True, "stream": True}


def probe_regex() -> dict[str, Any]:
    """Asks for one token that a regex decides: refused or ignored where the engine was built without them."""
    regex = Constraint(kind="regex", source=PROBE_ANSWER)
    return {"prompt": "?", "n_predict": 4, "temperature": 0.0, "stream": True, **constraints.fields(regex)}
