"""The rules for a batch of questions, replayed: the difficulty prior, and one budget over all questions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from pools import Pool, Recording
from report import Report

from anabranch.strategies.best_of_n.rules import Trace
from anabranch.strategies.best_of_n.stopping import (
    Preallocated,
    allocate,
    boundary,
    preallocation,
    success_gains,
)

TRIES = 4
"""Traces of each question that is tried while the boundary of the easy ones is looked for."""

PROBE = 10
"""Traces from which the chance of a right answer is guessed; they are not used otherwise."""

Arrivals = Sequence[Sequence[Sequence[Trace]]]
PerProblem = tuple[list[float], list[float], list[float]]


def difficulty_prior(
    recording: Recording, arrivals: Arrivals, select: Callable[[Sequence[Trace]], Trace | None]
) -> Mapping[str, PerProblem]:
    """Right answers, traces and lots of each problem, for two ways to order the problems by difficulty.

    No model ordered these problems. The length of the question is a guess that costs nothing; the recorded share of right
    answers is the best order that a model could give.
    """
    pools, places = recording.pools, range(len(recording.pools))
    known = sorted(places, key=lambda place: -fmean(pools[place].right))
    guessed = sorted(places, key=lambda place: len(pools[place].question))
    return {
        f"{name} order": _replay_batches(order, recording, arrivals, select)
        for name, order in (("guessed", guessed), ("known", known))
    }


def _replay_batches(
    order: Sequence[int],
    recording: Recording,
    arrivals: Arrivals,
    select: Callable[[Sequence[Trace]], Trace | None],
) -> PerProblem:
    count = len(arrivals[0])
    taken = [_taken([each[nth] for each in arrivals], order, recording.most) for nth in range(count)]
    right = [
        fmean(
            (trace := select(own[nth][: taken[nth][place][0]])) is not None and pool.right[trace.number]
            for nth in range(count)
        )
        for place, (pool, own) in enumerate(zip(recording.pools, arrivals, strict=True))
    ]
    traces, lots = (
        [fmean(batch[place][kind] for batch in taken) for place in range(len(order))] for kind in (0, 1)
    )
    return right, traces, lots


def _taken(pools: Sequence[Sequence[Trace]], order: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Traces and lots of each problem, the easiest first in `order`."""
    hardest_first = [pools[place][:TRIES] for place in reversed(order)]
    agreed = [len({trace.answer for trace in tries} | {None}) == 2 for tries in hardest_first]
    hard = boundary(agreed, window=min(32, len(order) // 4)) or len(order)
    taken, needed = [(1, 1)] * len(order), list[int]()
    for place in order[len(order) - hard :]:
        rule = Preallocated(first=max(TRIES, preallocation(needed)), most=most)
        ended = lots = 0
        while (wanted := rule.wanted(pools[place][:ended])) > ended:
            ended, lots = wanted, lots + 1
        taken[place] = ended, lots
        needed.append(rule.needed(pools[place][:ended]))
    return taken


def measure_coverage(recorded: Sequence[Recording], orders: int) -> Report:
    """How often one of the traces is right, with the same number for each problem and with one budget for all.

    The known chance is the share of right traces in the recording, those that are drawn included: an upper bound.
    """
    report = Report(
        title=f"One of the traces is right, % of problems; chance guessed from {PROBE} others, or known; {orders} orders",
        columns=("recording", "traces a problem", "same for each", "allocated, guessed", "allocated, known"),
    )
    for recording in recorded:
        for mean in (2, 4, 8, 16):
            if len(recording.pools[0].traces) > PROBE + mean:
                report.row(recording.name.partition(",")[0], mean, *_coverage(recording.pools, mean, orders))
    return report


def _coverage(pools: Sequence[Pool], mean: int, orders: int) -> tuple[float, float, float]:
    rng = random.Random(2)
    found = [_one_order(pools, mean, rng) for _ in range(orders)]
    same, guessed, known = (100 * fmean(each) for each in zip(*found, strict=True))
    return same, guessed, known


def _one_order(pools: Sequence[Pool], mean: int, rng: random.Random) -> tuple[float, float, float]:
    drawn = [rng.sample(pool.right, len(pool.right)) for pool in pools]
    probes, rest = [own[:PROBE] for own in drawn], [own[PROBE:] for own in drawn]
    guessed = [(sum(probe) + 1) / (PROBE + 2) for probe in probes]
    known = [fmean(pool.right) for pool in pools]

    def covered(given: Sequence[int]) -> float:
        return fmean(any(own[:count]) for own, count in zip(rest, given, strict=True))

    def shared_out(chances: Sequence[float]) -> float:
        gains = [success_gains(chance, len(own)) for chance, own in zip(chances, rest, strict=True)]
        return covered(allocate(gains, mean * len(pools)))

    return covered([mean] * len(pools)), shared_out(guessed), shared_out(known)
