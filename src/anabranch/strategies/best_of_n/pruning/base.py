"""What the pruning rules share, and the rules that are made of others, or of next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anabranch.strategies.best_of_n.rules import Need, PruningRule, StoppingRule, Trace
from anabranch.strategies.best_of_n.stopping.base import check_least, count_votes


def alive(running: Sequence[Trace], ended: Sequence[Trace]) -> list[Trace]:
    """Those that run and have not ended in the meantime."""
    over = {trace.number for trace in ended}
    return [trace for trace in running if trace.number not in over]


def numbers(traces: Sequence[Trace]) -> frozenset[int]:
    """Their numbers."""
    return frozenset(trace.number for trace in traces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What any of several rules prunes. Order-free where the rules are.

    Attributes:
        rules: asked one after the other; none at all prunes nothing.
    """

    rules: tuple[PruningRule, ...]

    @property
    def needs(self) -> frozenset[Need]:
        """What any of them needs."""
        return frozenset[Need]().union(*(rule.needs for rule in self.rules))

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """The union."""
        return frozenset[int]().union(*(rule.pruned(running, ended) for rule in self.rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """Traces that have used up their tokens: they will be cut before an answer, and be no vote. Order-free.

    Attributes:
        tokens: of a trace; the experiments of DeepConf end one at 32,000. Raises InvalidParameter below 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    tokens: int = 32_000

    def __post_init__(self) -> None:
        check_least("tokens", self.tokens, 1)

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """Those with so many tokens or more."""
        return numbers([trace for trace in alive(running, ended) if trace.tokens >= self.tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """All, once the leading answer can no longer be overtaken, however those vote that are missing. Order-free.

    This holds for plain votes (`MajorityVote`), and changes no decision of theirs.

    Attributes:
        traces: that will be asked for in all; those that run and have ended, where these are more. Raises
            InvalidParameter below 0.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    traces: int = 0

    def __post_init__(self) -> None:
        check_least("traces", self.traces, 0)

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """All or none."""
        left = alive(running, ended)
        first, second, *_ = (*count_votes([trace for trace in ended if trace.complete]), 0, 0)
        missing = max(len(left), self.traces - len(ended))
        return numbers(left) if first - second > missing else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """All, once a stopping rule has enough with those that have ended. Order-free where the rule is.

    `Enough(rule=Consensus())` is DeepConf's adaptive stop, at 0.95 of the votes; `Enough(rule=AdaptiveConsistency())` goes
    by the Beta posterior, at 0.95 as well.

    Attributes:
        rule: any stopping rule.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    rule: StoppingRule

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """All or none."""
        enough = self.rule.wanted(ended) <= len(ended)
        return numbers(alive(running, ended)) if enough else frozenset()
