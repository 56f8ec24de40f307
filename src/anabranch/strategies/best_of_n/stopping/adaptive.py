"""Adaptive-Consistency: one trace after the other, until the vote looks settled (arXiv 2305.11860).

It is sequential by nature; `Waves` makes it ask for several at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import posterior
from anabranch.strategies.best_of_n.stopping.base import check_inside, check_least, check_share, count_votes


class Criterion(Protocol):
    """When a vote is settled."""

    def met(self, votes: Sequence[int]) -> bool:
        """Whether it is, with so many votes for each answer, the greatest number first; there is at least one vote."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Beta:
    """The top answer is more probable than the runner-up, with this confidence.

    At 0.95 four equal answers are enough: 1 - 2^-5 = 0.969. The confidence holds on average over questions of two
    answers with all probabilities alike, however often the votes are looked at; the risk is greater where a question is
    near a tie, and smaller where it is not.

    Attributes:
        confidence: between 0 and 1. Raises InvalidParameter outside.
    """

    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_inside("confidence", self.confidence)

    def met(self, votes: Sequence[int]) -> bool:
        """Compare the first two; an answer that nobody gave is the runner-up of a unanimous vote."""
        first, second, *_ = (*votes, 0)
        return posterior.beats(first, second) >= self.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet:
    """The top answer is more probable than each of the others, with this confidence. As `Beta` where there are two.

    The published code draws random numbers; this integrates.

    Attributes:
        confidence: between 0 and 1.
        top: answers that are looked at, those with most votes. Raises InvalidParameter below 2.
    """

    confidence: float = 0.95
    top: int = 5

    def __post_init__(self) -> None:
        check_inside("confidence", self.confidence)
        check_least("top", self.top, 2)

    def met(self, votes: Sequence[int]) -> bool:
        """Compare the first with all others."""
        considered = tuple(votes[: self.top])
        return posterior.leads(considered if len(considered) > 1 else (*considered, 0)) >= self.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Entropy:
    """The entropy of the votes is at most this part of the greatest possible for so many answers.

    A unanimous vote is given one vote against it, as in the published code: else two equal answers would settle it. At
    0.75, four equal answers do.

    Attributes:
        at_most: between 0 and 1. Raises InvalidParameter outside.
    """

    at_most: float = 0.75

    def __post_init__(self) -> None:
        check_inside("at_most", self.at_most)

    def met(self, votes: Sequence[int]) -> bool:
        """Needs two votes at least."""
        if sum(votes) < 2:
            return False
        counted = votes if len(votes) > 1 else (*votes, 1)
        shares = [count / sum(counted) for count in counted]
        return -sum(part * math.log(part, len(counted)) for part in shares) <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Majority:
    """The top answer has at least this share of at least two votes: so two equal answers are enough.

    Attributes:
        share: above 0, up to 1. Raises InvalidParameter outside.
    """

    share: float = 0.8

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def met(self, votes: Sequence[int]) -> bool:
        """Compare the first with all."""
        return sum(votes) >= 2 and votes[0] >= self.share * sum(votes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConsistency:
    """One more trace until the criterion is met. Order-free.

    Attributes:
        criterion: when the vote is settled.
        most: traces. Raises InvalidParameter below 1.
    """

    criterion: Criterion = field(default_factory=Beta)
    most: int = 40

    def __post_init__(self) -> None:
        check_least("most", self.most, 1)

    def wanted(self, ended: Sequence[Trace]) -> int:
        """One more than have ended, or no more."""
        counted = count_votes(ended)
        settled = bool(counted) and self.criterion.met(counted)
        return min(self.most, len(ended) + (not settled))
