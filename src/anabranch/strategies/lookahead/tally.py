"""Tally: what became of the drafted steps, and what the target wrote: the figures in the answer. Pure.

Of drafted steps, `accepted` ones stand in the answer; `rejected` ones were judged, or were no whole step; `discarded`
ones nobody judged: a step before them was rejected, another draft of the same place was accepted, or the target's own
step was there before they were whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from anabranch.orchestrator.answer import Figure
    from anabranch.orchestrator.backend import SpecFigures
    from anabranch.strategies.lookahead.steps import Step

Fate = Literal["accepted", "rejected", "discarded"]
FATES: tuple[Fate, ...] = ("accepted", "rejected", "discarded")


@dataclass(slots=True)
class Tally:
    """Counts of one answer."""

    drafts: Counter[Fate] = field(default_factory=Counter)
    draft_tokens: Counter[Fate] = field(default_factory=Counter)
    own_steps: int = 0
    own_tokens: int = 0
    _spec: list[float] = field(default_factory=list)

    def draft(self, step: Step, fate: Fate) -> None:
        """What became of a drafted step."""
        self.drafts[fate] += 1
        self.draft_tokens[fate] += step.tokens

    def stopped(self, tokens: int) -> None:
        """A draft was stopped before its step was whole."""
        self.drafts["discarded"] += 1
        self.draft_tokens["discarded"] += tokens

    def own(self, step: Step) -> None:
        """A step of the target stands in the answer."""
        self.own_steps += 1
        self.own_tokens += step.tokens

    def speculated(self, spec: SpecFigures | None) -> None:
        """What the server says of token-level speculation within one call of the target."""
        if spec is not None:
            self._spec.append(spec.accept_length)

    @property
    def acceptance(self) -> float | None:
        """The share of the drafts that were decided on which were accepted; None where there were none."""
        decided = self.drafts["accepted"] + self.drafts["rejected"]
        return self.drafts["accepted"] / decided if decided else None

    def figures(self) -> Mapping[str, Figure]:
        """For `Run.report`.

        `drafts` and `draft_tokens` by what became of them, `acceptance` of those that were decided on, `target_steps` and
        `target_tokens` of the answer that the target wrote before it went on alone, if it did; `accept_length`:
        tokens for each verification of token-level speculation, as the target's server reports it.
        """
        rate = self.acceptance
        return {
            "drafts": {fate: self.drafts[fate] for fate in FATES},
            "draft_tokens": {fate: self.draft_tokens[fate] for fate in FATES},
            "acceptance": None if rate is None else round(rate, 4),
            "target_steps": self.own_steps,
            "target_tokens": self.own_tokens,
            "accept_length": round(sum(self._spec) / len(self._spec), 3) if self._spec else None,
        }
