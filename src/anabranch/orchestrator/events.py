"""Everything that happens in a run, as typed, timestamped events.

The SDK's stream, the progress display, the trace file and the picture of a run are readers of this one stream.
Events are made only while somebody listens, and are cheap to make: plain slotted dataclasses. `t` is seconds since
the run began. `schema()` is the JSON schema of what `Event`s look like in a trace file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from anabranch.orchestrator.errors import InvalidParameter

NodeState = Literal["waiting", "ready", "running", "done", "failed", "skipped"]


@dataclass(slots=True, kw_only=True)
class RunStarted:
    """A request came in. `started_at` is Unix time in seconds."""

    t: float
    run_id: str
    strategy: str
    question: str
    backend: str
    started_at: float
    type: Literal["run_started"] = "run_started"


@dataclass(slots=True, kw_only=True)
class GenerationQueued:
    """A generation was asked for. `parents` are the generations that its prompt stands on."""

    t: float
    id: int
    parents: tuple[int, ...]
    label: str
    role: str
    depth: int
    group: str = ""
    type: Literal["generation_queued"] = "generation_queued"


@dataclass(slots=True, kw_only=True)
class GenerationStarted:
    """A generation got its slot and went to the server, as attempt number `attempt` (from 1).

    `model` is the one that is asked for; empty where the server's default is not known.
    """

    t: float
    id: int
    backend: str
    attempt: int = 1
    model: str = ""
    type: Literal["generation_started"] = "generation_started"


@dataclass(slots=True, kw_only=True)
class GenerationDelta:
    """A generation wrote something."""

    t: float
    id: int
    text: str
    tokens: int
    reasoning: str = ""
    type: Literal["generation_delta"] = "generation_delta"


@dataclass(slots=True, kw_only=True)
class GenerationRetried:
    """An attempt failed before it wrote anything; the next one starts in `delay_s` seconds."""

    t: float
    id: int
    attempt: int
    error: str
    delay_s: float
    status_code: int | None = None
    type: Literal["generation_retried"] = "generation_retried"


@dataclass(slots=True, kw_only=True)
class GenerationFinished:
    """A generation ended, by itself or because we stopped it."""

    t: float
    id: int
    finish_reason: str
    prompt: int
    cached: int
    completion: int
    model: str = ""
    matched: str | None = None
    spec_accept_length: float | None = None
    type: Literal["generation_finished"] = "generation_finished"


@dataclass(slots=True, kw_only=True)
class GenerationFailed:
    """A generation failed for good."""

    t: float
    id: int
    error: str
    status_code: int | None = None
    type: Literal["generation_failed"] = "generation_failed"


@dataclass(slots=True, kw_only=True)
class GenerationDiscarded:
    """What a generation wrote is not used: its tokens are wasted."""

    t: float
    id: int
    completion: int
    reason: str = ""
    type: Literal["generation_discarded"] = "generation_discarded"


@dataclass(slots=True, kw_only=True)
class GenerationJudged:
    """A strategy has judged what a generation wrote: a drafted step, a trace. `score` is on the judge's own scale."""

    t: float
    id: int
    accepted: bool
    by: str = ""
    score: float | None = None
    type: Literal["generation_judged"] = "generation_judged"


@dataclass(slots=True, kw_only=True)
class NodeChanged:
    """A node of a task graph changed its state."""

    t: float
    node: str
    state: NodeState
    parents: tuple[str, ...] = ()
    reason: str = ""
    type: Literal["node_changed"] = "node_changed"


@dataclass(slots=True, kw_only=True)
class AnswerDelta:
    """A piece of the answer, in its final order."""

    t: float
    text: str
    reasoning: str = ""
    type: Literal["answer_delta"] = "answer_delta"


@dataclass(slots=True, kw_only=True)
class Warned:
    """Something that the caller should know went wrong, and the run went on."""

    t: float
    message: str
    type: Literal["warned"] = "warned"


@dataclass(slots=True, kw_only=True)
class FellBack:
    """The strategy could not apply; the answer is a plain one."""

    t: float
    reason: str
    type: Literal["fell_back"] = "fell_back"


@dataclass(slots=True, kw_only=True)
class RunFinished:
    """The last event of a run. `summary` is what `Answer.to_dict` gives, without the text; `error` if it failed."""

    t: float
    finish_reason: str
    summary: Mapping[str, Any]
    error: str | None = None
    type: Literal["run_finished"] = "run_finished"


Event = (
    RunStarted
    | GenerationQueued
    | GenerationStarted
    | GenerationDelta
    | GenerationRetried
    | GenerationFinished
    | GenerationFailed
    | GenerationDiscarded
    | GenerationJudged
    | NodeChanged
    | AnswerDelta
    | Warned
    | FellBack
    | RunFinished
)


def to_dict(event: Event) -> dict[str, Any]:
    """An event as a JSON object, `type` and `t` first. Not `dataclasses.asdict`: that copies deeply, and is slow."""
    body = {field.name: getattr(event, field.name) for field in fields(event)}
    return {"type": body.pop("type"), "t": round(body.pop("t"), 6), **body}


def to_json(event: Event) -> str:
    """An event as one line of a trace file."""
    return json.dumps(to_dict(event), ensure_ascii=False, separators=(",", ":"))


def from_json(line: str) -> Event:
    """The event in one line of a trace file. Raises InvalidParameter when the line is none."""
    from pydantic import ValidationError

    try:
        event: Event = _adapter().validate_json(line)
    except ValidationError as error:
        raise InvalidParameter("trace", f"not an event: {line[:80]!r} ({error.errors()[0]['msg']})") from error
    return event


def schema() -> dict[str, Any]:
    """JSON schema of a line of a trace file."""
    published: dict[str, Any] = _adapter().json_schema()
    return published


@cache
def _adapter() -> Any:
    from typing import Annotated

    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[Event, Field(discriminator="type")])
