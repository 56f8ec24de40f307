"""What an SGLang server says about itself, and what follows for the engine. Also finds the servers behind a router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.orchestrator.backend import Capabilities, Measure, PrefixSharing
from anabranch.orchestrator.errors import BackendUnavailable, ModelNotFound, UnsupportedCapability
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.thinking import Tags, tags_of
from anabranch.serving.backends.sglang.tokenizer import RemoteTokenizer

MOST_CONCURRENT = 128
"""Calls in flight for each server: with more than that waiting, SGLang's cache-aware policies order them by arrival."""
MOST_STOPS = 32
MOST_TOP_LOGPROBS = 20

MEASURES: Mapping[str, frozenset[Measure]] = {
    "embed": frozenset({"embedding"}),
    "classify": frozenset({"reward"}),
    "none": frozenset({"likelihood"}),
}
"""What a server measures, by the task that its model is run for (`/model_info`); `none`: it writes text."""

_ROUTER = "router_manager"
_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One SGLang server, or several behind a router.

    Attributes:
        workers: the servers themselves; for one without a router, the address that was given.
        incremental: a stream's chunks carry what is new, not what there is so far.
        parser: the server has a reasoning parser, and lifts constraints within reasoning on request.
        adapters: LoRA adapters by the name under which they are listed.
    """

    workers: tuple[Connection, ...]
    tokenizer: RemoteTokenizer
    capabilities: Capabilities
    incremental: bool = False
    parser: bool = False
    tags: Tags = field(default_factory=Tags)
    adapters: Mapping[str, str] = field(default_factory=dict)

    def adapter(self, model: str | None) -> str | None:
        """The LoRA adapter that a model's name means. Raises ModelNotFound where there is no such model."""
        known = self.capabilities.models
        if model is None or (model in known and model not in self.adapters):
            return None
        if model in self.adapters:
            return self.adapters[model]
        base, colon, adapter = model.partition(":")
        if colon and base in known:
            return adapter
        raise ModelNotFound(f"the server has no model {model!r}; it has: {', '.join(known)}")


async def inspect(entry: Connection, connect: Callable[[str], Connection]) -> Server:
    """Ask the server at this address what it is.

    Args:
        connect: opens a connection to another address: that of a worker, where the first one is a router's.

    Raises:
        BackendError: it is not reachable, or no SGLang server.
    """
    workers = await _workers(entry, connect)
    info = await workers[0].get("/server_info")
    models = (await workers[0].get("/v1/models"))["data"]
    tokenizer = RemoteTokenizer(workers[0])
    return Server(
        workers=workers,
        tokenizer=tokenizer,
        capabilities=_capabilities(
            info, models, await _task(workers[0]), await tokenizer.fingerprint(), len(workers)
        ),
        incremental=bool(info.get("incremental_streaming_output")),
        parser=bool(info.get("reasoning_parser")),
        tags=tags_of(info.get("reasoning_parser")),
        adapters={model["id"]: model["id"] for model in models if model.get("parent")},
    )


async def _workers(entry: Connection, connect: Callable[[str], Connection]) -> tuple[Connection, ...]:
    """The servers that do the work. A router has no tokenizer for chats, and passes no abort on: they are asked."""
    try:
        await entry.get("/server_info")
    except ModelNotFound:
        return await _behind_router(entry, connect)
    return (entry,)


async def _behind_router(entry: Connection, connect: Callable[[str], Connection]) -> tuple[Connection, ...]:
    try:
        about = await entry.get("/get_server_info")
        if not about.get(_ROUTER):
            raise UnsupportedCapability(f"{entry.url} is an SGLang server without /server_info: update it")
        listed = (await entry.get("/workers"))["workers"]
    except ModelNotFound:
        raise UnsupportedCapability(
            f"{entry.url} is no SGLang server; for another OpenAI-compatible one use {entry.url}/v1"
        ) from None
    workers = tuple(connect(worker["url"]) for worker in listed if worker.get("is_healthy"))
    if not workers:
        raise BackendUnavailable(f"the router at {entry.url} has no healthy worker")
    return workers


async def _task(worker: Connection) -> str:
    """What its model is run for: `none` writes text, `embed` and `classify` measure. Older servers do not say."""
    try:
        about = await worker.get("/model_info")
    except ModelNotFound:
        return "none"
    return str((about.get("embedding") or {}).get("task") or "none")


def _capabilities(
    info: _Fields, models: list[_Fields], task: str, vocabulary: str, workers: int
) -> Capabilities:
    state = (info.get("internal_states") or [{}])[0]
    running = state.get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
    grammars = info.get("grammar_backend") not in (None, "none")
    writes = task == "none"
    return Capabilities(
        models=tuple(model["id"] for model in models),
        vocabulary=vocabulary,
        prefill=True,
        constraints=frozenset({"json_schema", "regex", "ebnf"} if grammars and writes else ()),
        top_logprobs=MOST_TOP_LOGPROBS if writes else 0,
        labels=writes,
        measures=MEASURES.get(task, frozenset()),
        abort=True,
        priority=bool(info.get("enable_priority_scheduling")),
        cached_tokens=True,
        prefix_sharing=PrefixSharing.NONE if info.get("disable_radix_cache") else PrefixSharing.LEADER,
        max_concurrency=workers
        * min(MOST_CONCURRENT, (running or MOST_CONCURRENT) * (info.get("dp_size") or 1)),
        context_length=models[0].get("max_model_len"),
        max_stops=MOST_STOPS,
    )
