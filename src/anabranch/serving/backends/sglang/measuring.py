"""From a measuring `Call` to SGLang's request for it, and from the answer to numbers. Pure.

`/encode` and `/classify` are the same to the server: which of them makes sense depends on the model that it runs. A likelihood is a `/generate` that writes nothing. Checked against SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.errors import MalformedResponse
from anabranch.serving.backends.sglang.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its path and its body."""

    path: str
    body: dict[str, Any]


def ask(call: Call, prompt: Prompt) -> Asked:
    """The request that measures what the call wants to know."""
    if call.measure == "embedding":
        return Asked("/encode", {"rid": call.rid, "text": call.branch.last_turn})
    ids = list(prompt.ids)
    if call.measure == "reward":
        return Asked("/classify", {"rid": call.rid, "input_ids": ids})
    body = {
        "rid": call.rid,
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        # From the token before the segment on, which itself gets none: what stands before may come from the cache.
        "logprob_start_len": max(0, len(ids) - prompt.last - 1),
    }
    return Asked("/generate", body)


def read(call: Call, answer: Any) -> tuple[tuple[float, ...], Mapping[str, Any]]:
    """The numbers in the answer, and the server's figures. Raises MalformedResponse where there are none."""
    try:
        meta: Mapping[str, Any] = answer["meta_info"]
        if call.measure == "likelihood":
            found = [entry[0] for entry in meta["input_token_logprobs"][1:]]
        else:
            found = answer["embedding"]
        if not found:
            raise ValueError("no numbers")
        return tuple(float(number) for number in found), meta
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedResponse(f"no {call.measure} in the answer: {str(answer)[:200]}") from error
