"""The seam between the engine and model servers: one streaming method.

A backend turns a `Call` into a stream of `Delta`s. It knows nothing of runs, retries, budgets or other calls in
flight; the scheduler owns those. Closing the stream early stops the work on the server too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, get_args

from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.sampling import Constraint, Sampling

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "cancelled", "budget", "deadline"]
"""Why a generation ended. The last three are the engine's: stopped by us, with what there was so far."""

Measure = Literal["embedding", "reward", "likelihood"]
"""What a call can ask for in place of text, all of it in numbers.

`embedding`: the vector of the text of the branch's last turn, on its own.
`reward`: a reward model's value of the conversation as it stands, the assistant's turn so far included.
`likelihood`: the log-probability of each token of the branch's last segment, given all before it.
"""


class PrefixSharing(StrEnum):
    """How the siblings of a fork come to share their common prefix on this backend."""

    AUTOMATIC = "automatic"
    """The server does it, also for cold siblings that arrive together."""
    LEADER = "leader"
    """Calls that begin alike wait until the first one's prefix is in the cache (vLLM; SGLang, which does it by itself
    only for a single fork on an idle server: measured, see docs/benchmarks.md)."""
    BACKEND = "backend"
    """The backend arranges it from `Call.group` and `Call.siblings` (llama.cpp's slots)."""
    NONE = "none"
    """Nothing is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do, as measured or declared by its server.

    Attributes:
        models: names of the models it serves, the default one first.
        vocabulary: names the tokenizer; equal names mean that token ids may be exchanged. Empty: no ids.
        prefill: continues an assistant turn that has begun.
        constraints: kinds of `Constraint` that it enforces.
        top_logprobs: most alternatives for each token it can report; 0 means no logprobs.
        labels: scores label continuations in one call (`Call.labels`).
        measures: what it measures of a branch (`Call.measure`).
        abort: stops the work on the server when the stream is closed.
        priority: honours `Call.priority`.
        cached_tokens: reports how much of the prompt came from its cache.
        max_concurrency: calls worth having in flight at once.
        context_length: most tokens of prompt and answer together; None where unknown.
        max_stops: most stop strings in one call; None where unlimited.
    """

    models: tuple[str, ...] = ()
    vocabulary: str = ""
    prefill: bool = False
    constraints: frozenset[str] = frozenset()
    top_logprobs: int = 0
    labels: bool = False
    measures: frozenset[Measure] = frozenset()
    abort: bool = False
    priority: bool = False
    cached_tokens: bool = False
    prefix_sharing: PrefixSharing = PrefixSharing.NONE
    max_concurrency: int = 64
    context_length: int | None = None
    max_stops: int | None = None

    def has(self, name: str) -> bool:
        """Whether it can do this: the name of one of these fields, or of a measure."""
        return name in self.measures if name in get_args(Measure) else bool(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a model server.

    Attributes:
        rid: id on the wire: 32 hexadecimal digits, so that none is the prefix of another.
        branch: what to continue.
        model: name of the model; None for the server's default.
        max_tokens: cap on completion tokens; None leaves it to the server's context.
        stop: stop strings; the text is cut before the one that matched.
        labels: when given, generate nothing: report how likely each of these texts is to come next
            (`End.label_logprobs`).
        measure: when given, generate nothing: measure this of the branch (`End.measured`).
        priority: higher goes first, where the server can.
        affinity: calls with the same value share prefixes and are best served by one worker.
        group: names the fork that this call belongs to; siblings have the same.
        siblings: how many calls of the group are known to be wanted, at least 1.
    """

    rid: str
    branch: Branch
    model: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | None = None
    top_logprobs: int = 0
    labels: tuple[str, ...] = ()
    measure: Measure | None = None
    priority: int = 0
    affinity: str = ""
    group: str = ""
    siblings: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one call as the server counted them. `cached` is the part of `prompt` that was not computed."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFigures:
    """Token-level speculative decoding inside one call, as the server reports it."""

    verify_count: int
    accept_length: float
    accept_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Log-probability of a token that was written, and of the alternatives, most likely first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a stream ended.

    Attributes:
        usage: None where the server says nothing; the engine then counts deltas and says so.
        matched: the stop string that ended it; None for the model's own end or a cap.
        tail: text that the token ids hold beyond the text of the deltas (the stop string, and the rest of its
            token); without token ids, the stop string where it is known.
        label_logprobs: for each of `Call.labels`, the log-probability of its coming next.
        measured: what `Call.measure` asked for; one number for a reward.
        queued_s: seconds that the call waited inside the server; None where unknown.
    """

    finish_reason: FinishReason = "stop"
    usage: TokenUsage | None = None
    matched: str | None = None
    tail: str = ""
    label_logprobs: Mapping[str, float] | None = None
    measured: tuple[float, ...] = ()
    spec: SpecFigures | None = None
    queued_s: float | None = None
    model: str | None = None


@dataclass(slots=True)
class Delta:
    """A piece of a stream. Not frozen, because thousands are made each second; nobody may change one.

    Attributes:
        tokens: completion tokens in this piece (exact where ids are given, else an estimate that
            `End.usage` corrects).
        end: set on the last piece, and only there.
    """

    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None


class Backend(Protocol):
    """A model server, or something that acts as one."""

    @property
    def name(self) -> str:
        """Where it is, for people: a URL, as a rule."""
        ...

    async def probe(self) -> Capabilities:
        """What it can do, as far as is known by now; asks the server once. Raises BackendError where it cannot."""
        ...

    def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Run one call. The last delta, and only it, has `end`.

        Closing the generator early stops the work on the server, too.

        Raises:
            BackendError: with the server's status, and whether to try again.
            UnsupportedCapability: the call asks for what the server cannot do.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and child processes. Idempotent."""
        ...
