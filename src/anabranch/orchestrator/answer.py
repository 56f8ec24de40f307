"""Answer: what a run gives back, with the figures that the engine counted along the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.backend import FinishReason
from anabranch.orchestrator.branch import GenerationId

if TYPE_CHECKING:
    from anabranch.orchestrator.accounting import GenerationRecord

AnswerFinish = FinishReason
"""Why the answer ends where it ends. `budget` and `deadline`: the best that there was when a limit was reached;
`cancelled`: only in answers of delegated runs that were stopped."""

Figure = int | float | str | bool | None | Sequence["Figure"] | Mapping[str, "Figure"]
"""What a strategy reports of itself: whatever JSON can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """Tokens of a run, over all of its branches.

    Attributes:
        prompt: prompt tokens of all calls; `cached` is the part that servers took from their caches.
        completion: all completion tokens. The same as `work`, under the name that OpenAI's clients know.
        work: all completion tokens of the run.
        span: completion tokens on the longest chain of dependent generations.
        wasted: completion tokens that were generated and then not used.
        branches: generations that were started.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    work: int = 0
    span: int = 0
    wasted: int = 0
    branches: int = 0

    @property
    def parallelism(self) -> float:
        """work / span: how many slots the run could keep busy; 1.0 for a run that generated nothing."""
        return self.work / self.span if self.span else 1.0

    def to_dict(self) -> dict[str, int | float]:
        """The figures by name, `parallelism` included."""
        return {
            "prompt": self.prompt,
            "cached": self.cached,
            "completion": self.completion,
            "work": self.work,
            "span": self.span,
            "parallelism": round(self.parallelism, 4),
            "wasted": self.wasted,
            "branches": self.branches,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds on the clock. `first_token_s` is None when no answer was written."""

    wall_s: float
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run gives back.

    Attributes:
        active: whether the strategy did what its name says; if not, `fell_back` says why.
        warnings: what went wrong on the way without stopping the run.
        figures: what the strategy reports of itself, by name; each documents its own.
        generations: the record of every generation, in the order in which they were asked for. Each look gives
            objects of its own, which are only to be read.
    """

    text: str
    reasoning: str = ""
    strategy: str
    active: bool = True
    fell_back: str | None = None
    warnings: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    run_id: str
    finish_reason: AnswerFinish = "stop"
    usage: RunUsage = field(default_factory=RunUsage)
    timing: Timing
    model: str = ""
    generations: Sequence[GenerationRecord] = ()

    @property
    def complete(self) -> bool:
        """Whether it came to its own end: neither a cap nor a limit nor we cut it short."""
        return self.finish_reason in ("stop", "tool_calls")

    @property
    def produced_by(self) -> tuple[GenerationId, ...]:
        """The generations that nothing else of the run was built on: where a branch made from it stands."""
        used = [record for record in self.generations if not record.wasted]
        built_on = {parent for record in used for parent in record.parents}
        return tuple(record.id for record in used if record.id not in built_on)

    @property
    def depth(self) -> int:
        """Generations on the longest chain of dependencies."""
        return max((record.depth for record in self.generations), default=0)

    @property
    def span(self) -> int:
        """Completion tokens on the chain of dependencies that has most of them."""
        return self.usage.span

    def to_dict(self) -> dict[str, Any]:
        """The answer as a JSON object; its keys are stable."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "strategy": self.strategy,
            "active": self.active,
            "fell_back": self.fell_back,
            "warnings": list(self.warnings),
            "figures": dict(self.figures),
            "run_id": self.run_id,
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_dict(),
            "timing": {
                "wall_s": round(self.timing.wall_s, 4),
                "first_token_s": None
                if self.timing.first_token_s is None
                else round(self.timing.first_token_s, 4),
            },
            "model": self.model,
        }
