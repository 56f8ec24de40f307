"""What the three kinds of rule are given and say: how many traces are enough, which to stop, which answer to take.

A rule is pure: the same traces give the same decision, so that recorded traces can be replayed through it, and any
stopping rule goes with any pruning and any selection rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from anabranch.orchestrator.errors import UnsupportedCapability

Need = Literal["confidences", "scores"]
"""What a rule looks at beside answers, texts and token counts."""


class MissingMeasure(UnsupportedCapability, ValueError):
    """A rule needs what some traces have not: leave those traces out, or take a rule that needs less.

    Attributes:
        need: what is missing.
        numbers: of the traces that lack it, ascending.
    """

    def __init__(self, need: Need, numbers: Sequence[int]) -> None:
        self.need, self.numbers = need, tuple(sorted(numbers))
        listed = ", ".join(map(str, self.numbers))
        super().__init__(f"the rule needs {need}; without: trace {listed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One whole sampled chain of thought, or as much of it as there is, as the rules see it.

    Attributes:
        number: its place in the order of asking, from 0.
        answer: its answer; equal strings are equivalent answers. None: it is no vote, since it has none that can be
            read, or did not come to its end.
        tokens: completion tokens.
        complete: it came to its end by itself.
        confidences: the confidence of each token (DeepConf, section 2); empty without log-probabilities.
        score: a scorer's, greater is better; None where it has not been scored.
    """

    number: int
    text: str = ""
    answer: str | None = None
    tokens: int = 0
    complete: bool = True
    confidences: tuple[float, ...] = ()
    score: float | None = None


class StoppingRule(Protocol):
    """How many traces are enough."""

    @property
    def most(self) -> int:
        """More traces than these it never wants."""
        ...

    def wanted(self, ended: Sequence[Trace]) -> int:
        """How many traces are wanted in all, after these have ended, in this order. No more than `len(ended)`: enough."""
        ...


class PruningRule(Protocol):
    """Which running traces are not worth going on with."""

    @property
    def needs(self) -> frozenset[Need]:
        """What traces must have. Raises MissingMeasure where one that it looks at has not."""
        ...

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """The numbers of the running traces to stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A selection rule's decision.

    Attributes:
        number: the trace whose text is the answer.
        answer: its answer; None where nothing is to be compared (open-ended text).
        shares: for each answer, its share of all votes, the greatest first.
    """

    number: int
    answer: str | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


class SelectionRule(Protocol):
    """Which answer to take."""

    @property
    def needs(self) -> frozenset[Need]:
        """What traces must have. Raises MissingMeasure where one that it looks at has not."""
        ...

    def select(self, traces: Sequence[Trace]) -> Selected | None:
        """The decision; None where no trace can be taken."""
        ...
