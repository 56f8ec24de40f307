"""Stopping rules of best-of-N, replayed on recorded traces: accuracy against the traces that they take.

Each rule sees the traces of a problem in several random orders, the same for all rules. Nothing is generated, so all
figures are exact for these recordings; the intervals are for other problems of the same kind (bootstrap over problems).
Needs the recordings: ANABRANCH_TEST_DATA is their folder.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from best_of_n_batch import difficulty_prior, measure_coverage
from pools import Pool, Recording, folder, recordings
from report import Report, finish, parser

from anabranch.strategies.best_of_n.rules import StoppingRule, Trace
from anabranch.strategies.best_of_n.stopping import (
    ESC,
    AdaptiveConsistency,
    Consensus,
    Dirichlet,
    Entropy,
    Fixed,
    Majority,
    OptScale,
    TokenBudget,
    Waves,
)

Select = Callable[[Sequence[Trace]], Trace | None]

ORDERS = 20
RESAMPLES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one rule and one selection, a number for each problem, each the mean over the orders.

    Attributes:
        right: share of right answers.
        traces: traces taken.
        lots: times that traces were asked for and waited for.
    """

    right: Sequence[float]
    traces: Sequence[float]
    lots: Sequence[float]

    def percent(self) -> list[float]:
        """Accuracy on each problem."""
        return [100 * value for value in self.right]

    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy, in percent."""
        return interval(self.percent())


def majority(traces: Sequence[Trace]) -> Trace | None:
    """The first trace of the answer with most votes; among answers with equally many, of the one that came first."""
    voters = [trace for trace in traces if trace.answer is not None]
    if not voters:
        return None
    votes = Counter(trace.answer for trace in voters)
    return max(voters, key=lambda trace: votes[trace.answer])


def best_score(traces: Sequence[Trace]) -> Trace | None:
    """The trace with the greatest score."""
    return max(traces, key=lambda trace: trace.score or 0.0, default=None)


def rules(recording: Recording) -> Mapping[str, StoppingRule]:
    """Each rule with its published parameters, as far as the recording has so many traces."""
    most = recording.most
    beta = AdaptiveConsistency(most=most)
    mean_tokens = fmean(trace.tokens for pool in recording.pools for trace in pool.traces)
    window, least = min(5, most // 2), min(16, most // 2)
    found: dict[str, StoppingRule] = {
        f"fixed {n}": Fixed(n=n) for n in (1, 2, 3, 5, 8, 12, 20, 40) if n <= most
    }
    found |= {
        "adaptive, beta 0.95": beta,
        "adaptive, dirichlet 0.95": AdaptiveConsistency(criterion=Dirichlet(), most=most),
        "adaptive, entropy 0.75": AdaptiveConsistency(criterion=Entropy(), most=most),
        "adaptive, majority 0.8": AdaptiveConsistency(criterion=Majority(), most=most),
        "beta in waves of 4": Waves(rule=beta, size=4),
        "beta in waves of 4, 8, ...": Waves(rule=beta, size=4, growth=2.0),
        f"ESC, windows of {window}": ESC(window=window, most=most),
        f"consensus 0.95 after {least}": Consensus(least=least, most=most),
        f"beta, tokens of {most // 4}": TokenBudget(rule=beta, tokens=round(most / 4 * mean_tokens)),
    }
    if recording.scored:
        found["OptScale 0.95"] = OptScale(first=3, most=most)
        found["OptScale 0.9"] = OptScale(first=3, most=most, target=0.9)
    return found


def replay(rule: StoppingRule, pool: Sequence[Trace]) -> tuple[int, int]:
    """Traces that the rule takes, and in how many lots, when each lot is waited for."""
    ended = lots = 0
    while (wanted := min(rule.wanted(pool[:ended]), len(pool))) > ended:
        ended, lots = wanted, lots + 1
    return ended, lots


def shuffled(pools: Sequence[Pool], orders: int) -> list[list[list[Trace]]]:
    """For each problem, its traces in so many orders; the same ones each time."""
    rng = random.Random(0)
    return [[rng.sample(pool.traces, len(pool.traces)) for _ in range(orders)] for pool in pools]


def try_rule(
    rule: StoppingRule, select: Select, pools: Sequence[Pool], orders: Sequence[Sequence[Sequence[Trace]]]
) -> Figures:
    """Replay one rule on all problems in all orders."""
    right, traces, lots = [], [], []
    for pool, arrivals in zip(pools, orders, strict=True):
        taken = [replay(rule, arrival) for arrival in arrivals]
        chosen = [select(arrival[:count]) for arrival, (count, _) in zip(arrivals, taken, strict=True)]
        right.append(fmean(trace is not None and pool.right[trace.number] for trace in chosen))
        traces.append(fmean(count for count, _ in taken))
        lots.append(fmean(count for _, count in taken))
    return Figures(right=right, traces=traces, lots=lots)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean, by bootstrap over problems."""
    rng = random.Random(1)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]


def measure(recording: Recording, orders: int) -> tuple[Report, Mapping[str, Figures]]:
    """One table; and for the picture, the figures of each line by selection and rule."""
    report = Report(
        title=f"{recording.name}; {orders} orders",
        columns=("selection", "rule", "traces", "lots", "accuracy %", "95 %", "less than all", "95 % of that"),
        numbers_from=2,
    )
    arrivals = shuffled(recording.pools, orders)
    selections: dict[str, Select] = {"majority": majority}
    if recording.scored:
        selections["best score"] = best_score
    found: dict[str, Figures] = {}
    for selection, select in selections.items():
        every = try_rule(Fixed(n=recording.most), select, recording.pools, arrivals)
        tried = {
            name: try_rule(rule, select, recording.pools, arrivals) for name, rule in rules(recording).items()
        }
        if selection == "majority":
            tried |= {
                f"DSC, {name}": Figures(right=right, traces=traces, lots=lots)
                for name, (right, traces, lots) in difficulty_prior(recording, arrivals, select).items()
            }
        for name, figures in tried.items():
            describe(report, selection, name, figures, every)
        found |= {f"{selection}: {name}": figures for name, figures in tried.items()}
    return report, found


def describe(report: Report, selection: str, name: str, figures: Figures, every: Figures) -> None:
    """One line. The last two columns compare problem by problem, so they are narrower than the first interval."""
    lost = [whole - own for own, whole in zip(figures.percent(), every.percent(), strict=True)]
    report.row(
        selection,
        name,
        fmean(figures.traces),
        fmean(figures.lots),
        f"{fmean(figures.percent()):.1f}",
        _range(figures.interval()),
        f"{fmean(lost):z.1f}",
        _range(interval(lost)),
    )


def _range(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f"{low:z.1f} to {high:z.1f}"


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--orders", type=int, default=ORDERS, help="random orders of arrival")
    options.add_argument("--plot", metavar="FILE.svg", help="draw accuracy against traces")
    chosen = options.parse_args()
    try:
        recorded = recordings(folder())
    except FileNotFoundError as error:
        sys.exit(f"{error}; set ANABRANCH_TEST_DATA to the folder that has traces/ with the recordings")
    measured = [(recording, *measure(recording, chosen.orders)) for recording in recorded]
    if chosen.plot:
        from best_of_n_plot import draw

        draw(chosen.plot, {recording.name: figures for recording, _, figures in measured})
    tables = [report for _, report, _ in measured]
    finish([*tables, measure_coverage(recorded, chosen.orders)], chosen)
