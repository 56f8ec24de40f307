"""From a `Call` to the body of SGLang's `/generate`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.branch import Branch, Segment
from anabranch.orchestrator.errors import UnsupportedCapability
from anabranch.orchestrator.sampling import Sampling
from anabranch.serving.backends.sglang.server import Server
from anabranch.serving.backends.sglang.thinking import Tags

_TEMPLATE_FIELDS = frozenset({"chat_template_kwargs", "reasoning_effort", "tools", "tool_choice"})
"""Of `Sampling.extra`, what goes to the chat template."""
_REQUEST_FIELDS = frozenset(
    {
        "cache_salt",
        "custom_labels",
        "custom_logit_processor",
        "extra_key",
        "lora_path",
        "max_thinking_tokens",
        "require_reasoning",
        "routed_dp_rank",
        "routing_key",
        "session_id",
        "session_params",
    }
)
"""Of `Sampling.extra`, what stands beside `sampling_params`; all else goes into it, but for `_BOOKKEEPING`."""
_BOOKKEEPING = frozenset(
    {
        "continue_final_message",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "return_cached_tokens_details",
        "return_meta_info",
        "rid",
        "safety_identifier",
        "separate_reasoning",
        "service_tier",
        "store",
        "stream_reasoning",
        "user",
        "verbosity",
    }
)
"""Fields of the OpenAI-compatible API that the native one would refuse: they change nothing in what is written, or are
what this backend does anyway."""
_NAMES = {"seed": "sampling_seed"}


def messages(branch: Branch) -> list[dict[str, Any]]:
    """The conversation for the chat template. Raises UnsupportedCapability where it holds more than text."""
    for message in branch.messages:
        if isinstance(message.content, tuple) and any(part.get("type") != "text" for part in message.content):
            raise UnsupportedCapability(
                "sglang:// takes text only; for images and audio use the server's address as http://HOST:PORT/v1"
            )
    return [message.to_wire() for message in branch.messages]


def template(sampling: Sampling) -> dict[str, Any]:
    """What of `Sampling.extra` is meant for the chat template."""
    return {name: value for name, value in sampling.extra.items() if name in _TEMPLATE_FIELDS}


def spoken(segment: Segment, tags: Tags, *, opened: bool) -> str:
    """A segment of another tokenizer as this model would have written it: its reasoning within the tags."""
    if not segment.reasoning:
        return segment.text
    return (
        ("" if opened else tags.start) + segment.reasoning + (tags.end + segment.text if segment.text else "")
    )


def build(call: Call, ids: Sequence[int], server: Server, *, opened: bool) -> dict[str, Any]:
    """The request body.

    Args:
        ids: the prompt.
        opened: the prompt ends within reasoning: a constraint is for what follows that.
    """
    body: dict[str, Any] = {
        "rid": call.rid,
        "input_ids": list(ids),
        "stream": True,
        "sampling_params": _sampling_params(call),
        **_of_request(call, server),
    }
    if call.constraint is not None and server.parser and opened:
        body["require_reasoning"] = True
    if call.top_logprobs:
        # Of the output only: prompt logprobs would keep the prefix cache from being used.
        body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": call.top_logprobs}
        body["return_text_in_logprobs"] = True
    return body


def build_score(call: Call, ids: Sequence[int], server: Server, labels: Sequence[int]) -> dict[str, Any]:
    """The request body that asks how likely each of these tokens is to come next, and for no token."""
    return {
        "rid": call.rid,
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": -1,
        "token_ids_logprob": list(labels),
        **_of_request(call, server),
    }


def _sampling_params(call: Call) -> dict[str, Any]:
    # Without max_new_tokens the server stops after 128; null lets it go on to the end of the context.
    params: dict[str, Any] = {"max_new_tokens": call.max_tokens}
    if call.stop:
        params["stop"] = list(call.stop)
    if call.constraint is not None:
        params[call.constraint.kind] = call.constraint.source
    params |= {_NAMES.get(name, name): value for name, value in call.sampling.given().items()}
    elsewhere = _TEMPLATE_FIELDS | _REQUEST_FIELDS | _BOOKKEEPING
    return params | {name: value for name, value in call.sampling.extra.items() if name not in elsewhere}


def _of_request(call: Call, server: Server) -> dict[str, Any]:
    fields = {name: value for name, value in call.sampling.extra.items() if name in _REQUEST_FIELDS}
    if server.capabilities.priority:
        fields["priority"] = call.priority
    if (adapter := server.adapter(call.model)) is not None:
        fields["lora_path"] = adapter
    return fields


def headers(call: Call) -> Mapping[str, str]:
    """What a router goes by: calls of one affinity are best served by one worker."""
    return {"x-smg-routing-key": call.affinity} if call.affinity else {}
