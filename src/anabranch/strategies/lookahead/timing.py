"""How much time lookahead saves, by the model of time of Lookahead Reasoning (arXiv 2506.19830, section 3.3). Pure.

A step of the target takes one unit of time, one of the draft c, a verdict nothing; each drafted step is accepted with
probability a, independently; any number of calls may run at once. Drafting may be at most d steps ahead of the root.

Asynchronous. Draft i begins when draft i-1 is there and the root is at most d steps behind; the target's step after
draft i is there one unit later. With D(k) the time at which draft k is there,

    D(k) = k c                                    where d c >= 1: drafting is never held back
    D(k) = floor(k / (d+1)) (1 + c) + (k mod (d+1)) c      else

After k accepted drafts and one that is rejected, which has probability a^k (1-a), there are k+1 steps in D(k) + 1, and
all begins anew. So by the renewal-reward theorem

    speed-up = (1 / (1-a)) / (1 + E[D(k)])

    E[D(k)] = c a / (1-a)                                              where d c >= 1
            = (1+c) q + c (a / (1-a) - (d+1) q),  q = a^(d+1) / (1 - a^(d+1))      else

Synchronous: d drafts, then the target at all of them at once: (1 - a^(d+1)) / (1-a) steps in d c + 1.

Token-level speculation that makes the target s times as fast makes the draft's share c s, and the whole
s x speed-up(a, c s, d): the gains multiply, less what the relatively slower draft costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_PRIOR = 2.0
"""Verdicts that the first guess of the acceptance rate counts as."""


def speedup(acceptance: float, ratio: float, depth: int, *, in_step: bool = False) -> float:
    """Expected speed-up over the target alone, at unbounded parallelism.

    Args:
        acceptance: probability that a draft is accepted, 0 to 1.
        ratio: time of a draft's step over that of a target's step.
        depth: steps that drafting may be ahead; 0 is 1.0.
        in_step: the synchronous form.
    """
    if depth == 0:
        return 1.0
    a, c, m = min(acceptance, 1.0 - 1e-9), ratio, depth + 1
    steps = 1.0 / (1.0 - a)
    if in_step:
        return steps * (1.0 - a**m) / (depth * c + 1.0)
    if depth * c >= 1.0:
        return steps / (1.0 + c * a * steps)
    rounds = a**m / (1.0 - a**m)
    return steps / (1.0 + (1.0 + c) * rounds + c * (a * steps - m * rounds))


def calls_at_once(ratio: float, depth: int) -> float:
    """Calls of the target that are under way at once, beside the one of the root: as many as drafts fit into a step."""
    return min(float(depth), 1.0 / ratio if ratio > 0 else float(depth))


@dataclass(slots=True, kw_only=True)
class DepthRule:
    """Chooses how far to draft ahead, from what has been seen so far.

    Each further depth is worth less, and costs the server more. With load L (0: idle, 1: full) a target step that
    shares the server with k others takes 1 + L k times as long, as far as decoding is bound by compute; the rule
    takes the depth with the greatest speed-up after that, the smallest of those within 2 %.

    Attributes:
        most: greatest depth.
        acceptance, ratio: first guesses, weighted as two verdicts, until there is something to see.
    """

    most: int
    acceptance: float = 0.5
    ratio: float = 0.25
    _accepted: int = field(default=0, init=False)
    _judged: int = field(default=0, init=False)
    _seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "target": 0.0}, init=False)
    _steps: dict[str, int] = field(default_factory=lambda: {"draft": 0, "target": 0}, init=False)

    def saw_verdict(self, *, accepted: bool) -> None:
        """A draft was judged."""
        self._judged += 1
        self._accepted += accepted

    def saw_step(self, author: str, seconds: float) -> None:
        """A step took so long."""
        self._steps[author] += 1
        self._seconds[author] += seconds

    @property
    def verdicts(self) -> int:
        """Drafts that were judged."""
        return self._judged

    @property
    def rate(self) -> float:
        """The acceptance rate, as far as it is known."""
        return (self._accepted + _PRIOR * self.acceptance) / (self._judged + _PRIOR)

    @property
    def measured_ratio(self) -> float:
        """A draft's step over a target's step in time, as far as it is known."""
        if not all(self._steps.values()) or not self._seconds["target"]:
            return self.ratio
        mean = {author: self._seconds[author] / self._steps[author] for author in self._steps}
        return mean["draft"] / mean["target"]

    def gain(self, depth: int, load: float) -> float:
        """Expected speed-up at this depth and load."""
        slowed = 1.0 + load * calls_at_once(self.measured_ratio, depth) if depth else 1.0
        return speedup(self.rate, self.measured_ratio, depth) / slowed

    def depth(self, load: float = 0.0) -> int:
        """The depth to use now; 0 where speculation loses."""
        gains = [self.gain(depth, load) for depth in range(self.most + 1)]
        return next(depth for depth, gain in enumerate(gains) if gain >= max(gains) / 1.02)
