"""Selection rules of best-of-N, replayed on recorded traces with reward scores: which takes the right answer most often.

All rules see the same traces of each problem, in several random orders of asking. Nothing is generated; intervals are for
other problems of the same kind (bootstrap over problems). Needs the recordings: ANABRANCH_TEST_DATA is their folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from best_of_n import ORDERS, interval, shuffled
from pools import Pool, Recording, folder, recordings
from report import Report, finish, parser

from anabranch.strategies.best_of_n.rules import SelectionRule, Trace
from anabranch.strategies.best_of_n.selection import BestScore, First, Longest, MajorityVote, ScoreVote

RULES: Mapping[str, SelectionRule] = {
    "first": First(),
    "longest": Longest(),
    "majority": MajorityVote(),
    "score-weighted votes": ScoreVote(),
    "best score": BestScore(),
}
OF = (2, 4, 8)
"""Traces that are selected from: the first so many of each order."""


def accuracy(rule: SelectionRule, pool: Pool, arrivals: Sequence[Sequence[Trace]], of: int) -> float:
    """How often the rule takes a right trace, in percent, over the orders of one problem."""
    return 100 * fmean(_right(rule, pool, arrival[:of]) for arrival in arrivals)


def _right(rule: SelectionRule, pool: Pool, asked: Sequence[Trace]) -> bool:
    """Numbers say who was asked for first, so they are dealt anew for each order."""
    selected = rule.select([replace(trace, number=place) for place, trace in enumerate(asked)])
    return selected is not None and pool.right[asked[selected.number].number]


def measure(recording: Recording, orders: int, of: Sequence[int] = OF) -> Report:
    """One table: a line for each number of traces and each rule. The last two columns compare problem by problem."""
    report = Report(
        title=f"{recording.name}; {orders} orders",
        columns=("of", "selection", "accuracy %", "95 %", "more than majority", "95 % of that"),
        numbers_from=2,
    )
    arrivals = shuffled(recording.pools, orders)
    for count in of:
        found = {
            name: [
                accuracy(rule, pool, own, count) for pool, own in zip(recording.pools, arrivals, strict=True)
            ]
            for name, rule in RULES.items()
        }
        for name, own in found.items():
            gained = [mine - plain for mine, plain in zip(own, found["majority"], strict=True)]
            report.row(
                str(count), name, f"{fmean(own):.1f}", _range(own), f"{fmean(gained):z.1f}", _range(gained)
            )
    return report


def _range(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{low:z.1f} to {high:z.1f}"


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--orders", type=int, default=ORDERS, help="random orders of asking")
    chosen = options.parse_args()
    try:
        recorded = recordings(folder())
    except FileNotFoundError as error:
        sys.exit(f"{error}; set ANABRANCH_TEST_DATA to the folder that has traces/ with the recordings")
    finish([measure(each, chosen.orders) for each in recorded if each.scored], chosen)
