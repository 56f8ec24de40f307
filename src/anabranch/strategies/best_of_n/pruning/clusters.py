"""DeepPrune's online greedy clustering: traces that will probably give the same answer are finished once (2510.08483, §3.3).

Trace after trace is compared with a few members of each cluster; it joins the one whose mean probability of the same
answer is greatest, if that is above a threshold, and else opens a new one. Nothing here asks a judge: `Clustering.ask`
says which pairs it wants judged next, `Clustering.tell` takes the probabilities, in any order, also twice.

The published numbers are 10 members compared; threshold 0.5, 32 clusters and 10 representatives are quoted from memory of
the paper, and are not checked. What the paper leaves open is decided so: the members compared are the first ones, not
drawn at random; a trace that fits nowhere when there are as many clusters as may be stays alone, and is not finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.pruning.base import alive
from anabranch.strategies.best_of_n.rules import Need, Trace
from anabranch.strategies.best_of_n.stopping.base import check_inside, check_least

Pair = tuple[int, int]
"""The numbers of two traces, a member of a cluster and the newcomer."""

Finish = Literal["largest", "every"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Representatives:
    """What a clustering comes to.

    Attributes:
        clusters: numbers of their members, in the order in which they joined; the largest cluster first, of equals the
            older.
        finished: the traces to go on with.
        pruned: all others.
    """

    clusters: tuple[tuple[int, ...], ...]
    finished: frozenset[int]
    pruned: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """The parameters.

    Attributes:
        threshold: mean probability above which a trace joins; between 0 and 1 (tau).
        most: clusters (K). Raises InvalidParameter below 1.
        compared: members of a cluster that a newcomer is compared with (K1). Raises InvalidParameter below 1.
        finished: traces of a cluster that are finished (K2). Raises InvalidParameter below 1.
        finish: representatives of the largest cluster alone, as published, or of every cluster. Where no cluster has two
            members, nothing is known to be redundant, and the first ones of all are finished.
    """

    threshold: float = 0.5
    most: int = 32
    compared: int = 10
    finished: int = 10
    finish: Finish = "largest"

    def __post_init__(self) -> None:
        check_inside("threshold", self.threshold)
        for name, value in (("most", self.most), ("compared", self.compared), ("finished", self.finished)):
            check_least(name, value, 1)
        if self.finish not in get_args(Finish):
            raise InvalidParameter("finish", f"must be largest or every, got {self.finish}")

    def cluster(self, numbers: Sequence[int], judge: Callable[[int, int], float]) -> Representatives:
        """All at once, with a judge that answers at once."""
        clustering = Clustering(self, numbers)
        while wanted := clustering.ask():
            clustering.tell({pair: judge(*pair) for pair in wanted})
        return clustering.representatives()


class Clustering:
    """A clustering under way. Depends on the order of the traces: they are taken as they are given."""

    def __init__(self, rule: Greedy, numbers: Sequence[int]) -> None:
        """`numbers`: of the traces. Raises InvalidParameter where one is there twice."""
        if len(set(numbers)) < len(numbers):
            raise InvalidParameter("numbers", "a trace is there twice")
        self.rule = rule
        self._waiting = list(reversed(numbers))
        self._clusters: list[list[int]] = []
        self._left_over: list[int] = []
        self._known: dict[Pair, float] = {}
        self._advance()

    @property
    def done(self) -> bool:
        """Whether each trace has its place."""
        return not self._waiting

    def ask(self) -> tuple[Pair, ...]:
        """The pairs that the next trace needs and that are not known yet; none: it is done."""
        if self.done:
            return ()
        return tuple(pair for pairs in self._pairs() for pair in pairs if pair not in self._known)

    def tell(self, probabilities: Mapping[Pair, float]) -> None:
        """Probabilities of the same answer. A pair that is not needed (any more) is no error; a second verdict on one
        changes nothing. Raises InvalidParameter where one is outside 0 .. 1."""
        for pair, probability in probabilities.items():
            if not 0.0 <= probability <= 1.0:
                raise InvalidParameter("probability", f"must be within 0 to 1, got {probability} for {pair}")
        for pair, probability in probabilities.items():
            self._known.setdefault(pair, probability)
        self._advance()

    def representatives(self) -> Representatives:
        """The outcome. Raises ValueError before it is done."""
        if not self.done:
            raise ValueError("some pairs are not judged yet")
        clusters = sorted(self._clusters, key=len, reverse=True)
        every = sorted(number for own in [*clusters, self._left_over] for number in own)
        finished = frozenset(self._finished(clusters))
        return Representatives(
            clusters=tuple(map(tuple, clusters)), finished=finished, pruned=frozenset(every) - finished
        )

    def _finished(self, clusters: Sequence[Sequence[int]]) -> list[int]:
        if not clusters:
            return []
        if self.rule.finish == "every":
            return [number for own in clusters for number in own[: self.rule.finished]]
        chosen = clusters[0] if len(clusters[0]) > 1 else [own[0] for own in clusters]
        return list(chosen[: self.rule.finished])

    def _pairs(self) -> list[list[Pair]]:
        """For each cluster, the pairs of its compared members with the newcomer."""
        newcomer = self._waiting[-1]
        return [[(member, newcomer) for member in own[: self.rule.compared]] for own in self._clusters]

    def _advance(self) -> None:
        while not self.done and not self.ask():
            likely = [math.fsum(map(self._known.__getitem__, own)) / len(own) for own in self._pairs()]
            newcomer = self._waiting.pop()
            best = max(range(len(likely)), key=likely.__getitem__, default=None)
            if best is not None and likely[best] > self.rule.threshold:
                self._clusters[best].append(newcomer)
            elif len(self._clusters) < self.rule.most:
                self._clusters.append([newcomer])
            else:
                self._left_over.append(newcomer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """Traces that a clustering of their beginnings finds redundant, with a judge that costs next to nothing. Order-free.

    It waits until each running trace has come so far, and looks no further into any, so that it says the same later on.
    Traces that have ended are clustered along; they are never pruned.

    Attributes:
        judge: probability of the same answer, given the beginnings of two traces (`Judge`).
        greedy: the clustering.
        prefix: characters of a trace that are looked at; the paper has 500 tokens for its plain variant. Raises
            InvalidParameter below 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    judge: Callable[[str, str], float]
    greedy: Greedy = Greedy()
    prefix: int = 2_000

    def __post_init__(self) -> None:
        check_least("prefix", self.prefix, 1)

    def pruned(self, running: Sequence[Trace], ended: Sequence[Trace]) -> frozenset[int]:
        """The running ones that are redundant; none before all have come so far."""
        left = alive(running, ended)
        if any(len(trace.text) < self.prefix for trace in left):
            return frozenset()
        known = {trace.number: trace.text[: self.prefix] for trace in [*left, *ended]}
        found = self.greedy.cluster(sorted(known), lambda one, other: self.judge(known[one], known[other]))
        return found.pruned & {trace.number for trace in left}
