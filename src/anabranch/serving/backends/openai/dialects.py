"""What kinds of OpenAI-compatible servers there are, what each can do, and how it wants to be asked.

A dialect is a frozen table row; what one server turns out to refuse is kept in `refusals.py`. Where a server cannot be
recognised, features that do no harm when ignored start optimistic (JSON schema, logprobs), and those that would
silently give a wrong text start pessimistic (continuing a turn).

Sources: replies of SGLang 0.5.23 and of llama.cpp's server; vLLM's request protocol (`structured_outputs`, and
`guided_*` before it: each version ignores the fields of the other); OpenAI's API reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.orchestrator.backend import Capabilities, PrefixSharing
from anabranch.orchestrator.errors import InvalidParameter

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of server wants to be asked.

    Attributes:
        capabilities: what it can do when nothing speaks against it.
        continues: fields that make it go on with a last assistant message.
        constraints: for each kind of constraint, its source to request fields.
        names_stops: whether a reply says which stop string ended it. Where it does not, stop strings are looked
            for here and the stream is closed at the first match: only so is the model's own end told from a stop.
        token_cap: the field that caps completion tokens.
        rid_field: the field that takes our id of the call; empty where there is none.
        spellings: sampling parameters that go by another name here.
        always: fields of every request.
        headers: headers of every request.
    """

    name: str
    capabilities: Capabilities
    continues: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Callable[[str], Fields]] = field(default_factory=dict)
    names_stops: bool = False
    token_cap: str = "max_tokens"
    rid_field: str = ""
    spellings: Mapping[str, str] = field(default_factory=dict)
    always: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Declare the constraints that there is a way to ask for."""
        full = replace(self.capabilities, constraints=frozenset(self.constraints))
        object.__setattr__(self, "capabilities", full)


def _response_format(source: str) -> Fields:
    """OpenAI's structured output; the name is a label that the model does not see."""
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise InvalidParameter("constraint", f"the JSON schema is not JSON: {error}") from error
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}

SGLANG = Dialect(
    name="sglang",
    capabilities=Capabilities(
        prefill=True,
        top_logprobs=64,
        labels=True,
        abort=True,
        prefix_sharing=PrefixSharing.LEADER,
        max_concurrency=128,  # from 128 waiting calls on its cache-aware policy turns into first come, first served
        max_stops=32,
    ),
    continues=_CONTINUE,
    constraints={
        "json_schema": _response_format,
        "regex": lambda source: {"regex": source},
        "ebnf": lambda source: {"ebnf": source},
    },
    names_stops=True,
    rid_field="rid",
)
VLLM = Dialect(
    name="vllm",
    capabilities=Capabilities(
        prefill=True,
        top_logprobs=20,
        labels=True,
        abort=True,
        prefix_sharing=PrefixSharing.LEADER,
        max_concurrency=128,
    ),
    continues=_CONTINUE,
    constraints={
        "json_schema": _response_format,
        "regex": lambda source: {"structured_outputs": {"regex": source}, "guided_regex": source},
        "ebnf": lambda source: {"structured_outputs": {"grammar": source}, "guided_grammar": source},
    },
    names_stops=True,
    rid_field="request_id",
)
LLAMACPP = Dialect(
    name="llamacpp",
    capabilities=Capabilities(
        prefill=True, top_logprobs=64, labels=True, abort=True, cached_tokens=True, max_concurrency=4
    ),
    constraints={"json_schema": _response_format, "ebnf": lambda source: {"grammar": source}},
    spellings={"repetition_penalty": "repeat_penalty"},
    always={"timings_per_token": True},  # token counts in each chunk: known also where we stop it
    headers={"Connection": "close"},  # it promises to keep a connection and closes it after each stream
)
OPENAI = Dialect(
    name="openai",
    capabilities=Capabilities(top_logprobs=20, labels=True, cached_tokens=True),
    constraints={"json_schema": _response_format},
    token_cap="max_completion_tokens",
)
OTHER = Dialect(
    name="other",
    capabilities=Capabilities(top_logprobs=20, labels=True),
    constraints={"json_schema": _response_format},
)
DIALECTS: Mapping[str, Dialect] = {d.name: d for d in (SGLANG, VLLM, LLAMACPP, OPENAI, OTHER)}


def recognise(models: list[Mapping[str, Any]]) -> Dialect:
    """The dialect of a server, from who it says owns its models."""
    owners = {str(model.get("owned_by", "")).lower() for model in models}
    return next((DIALECTS[name] for name in ("sglang", "vllm", "llamacpp") if name in owners), OTHER)


def describe(dialect: Dialect, models: list[Mapping[str, Any]], props: Mapping[str, Any]) -> Capabilities:
    """What this server can do.

    Args:
        models: the entries of `/v1/models`.
        props: what llama.cpp says of its slots; empty for others.
    """
    slots = props.get("total_slots")
    return replace(
        dialect.capabilities,
        measures=frozenset(
            {"embedding"}
        ),  # until it refuses: it depends on the model, of which no listing tells
        models=tuple(str(model["id"]) for model in models if "id" in model),
        context_length=_context_length(models[0] if models else {}, props),
        max_concurrency=slots if isinstance(slots, int) and slots > 0 else dialect.capabilities.max_concurrency,
    )


def _context_length(model: Mapping[str, Any], props: Mapping[str, Any]) -> int | None:
    """The context in tokens; llama.cpp's as it was started, before the one that the model was trained with."""
    meta = model.get("meta") or {}
    told = (
        model.get("max_model_len"),
        (props.get("default_generation_settings") or {}).get("n_ctx"),
        meta.get("n_ctx"),
        meta.get("n_ctx_train"),
    )
    return next((length for length in told if isinstance(length, int) and length > 0), None)
