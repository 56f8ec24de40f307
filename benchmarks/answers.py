"""How often the comparison of answers agrees with labelled pairs, beside math-verify alone and equal strings.

    python benchmarks/answers.py

Needs `equivalence/answer_pairs.jsonl` in $ANABRANCH_TEST_DATA. Pairs whose predicted side is a whole text are extracted
first. Each disagreement is a line of the second table.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from report import Report, finish, parser

from anabranch.answers import Equivalence, Verdict, extract

Pair = Mapping[str, Any]
LEAST = 0.99


def pairs() -> list[Pair]:
    """The labelled pairs."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "equivalence" / "answer_pairs.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sides(pair: Pair) -> tuple[str, str]:
    """Both answers; a box around one is taken off, and a whole text is read."""
    gold = extract(pair["gold"]) if "boxed" in pair["gold"] else pair["gold"]
    whole = pair["needs_extraction"] or "boxed" in pair["predicted"]
    predicted = extract(pair["predicted"]) if whole else pair["predicted"]
    return gold or "", predicted or ""


async def judged(found: Sequence[Pair]) -> list[Verdict]:
    """Our verdict on each pair."""
    with Equivalence() as equivalence:
        return [await equivalence.verdict(*sides(pair)) for pair in found]


def alone(pair: Pair) -> bool:
    """What math-verify says by itself of the two texts as they are."""
    from math_verify import parse, verify

    return bool(verify(parse(pair["gold"]), parse(pair["predicted"])))


def agreement(found: Sequence[Pair], verdict: Callable[[Pair], bool]) -> tuple[int, int]:
    """Pairs on which it agrees with the label: of equal ones, of different ones."""
    agreed = [verdict(pair) == pair["equal"] for pair in found]
    equal = sum(each for each, pair in zip(agreed, found, strict=True) if pair["equal"])
    return equal, sum(agreed) - equal


def main() -> None:
    """The command line."""
    chosen = parser(__doc__).parse_args()
    found = pairs()
    verdicts = asyncio.run(judged(found))
    ours = {pair["id"]: verdict for pair, verdict in zip(found, verdicts, strict=True)}
    equal = sum(pair["equal"] for pair in found)
    report = Report(
        title=f"Agreement with {len(found)} labelled pairs",
        columns=("", f"of {equal} equal", f"of {len(found) - equal} different", "agreement"),
    )
    ways: Mapping[str, Callable[[Pair], bool]] = {
        "anabranch.answers": lambda pair: ours[pair["id"]].equal,
        "math-verify alone": alone,
        "equal strings": lambda pair: bool(pair["gold"] == pair["predicted"]),
    }
    for name, verdict in ways.items():
        agreed = agreement(found, verdict)
        report.row(name, *agreed, f"{sum(agreed) / len(found):.1%}")
    wrong = [pair for pair in found if ours[pair["id"]].equal != pair["equal"]]
    report.target("share of disagreements", len(wrong) / len(found), 1 - LEAST)
    listed = Report(title="Disagreements", columns=("pair", "right one", "answer", "label", "decided by"))
    for pair in wrong:
        listed.row(pair["id"], *sides(pair), "equal" if pair["equal"] else "different", ours[pair["id"]].how)
    decided = Report(title="How verdicts were reached", columns=("by", "pairs"))
    for how, count in Counter(verdict.how for verdict in verdicts).most_common():
        decided.row(how, count)
    finish([report, listed, decided], chosen)


if __name__ == "__main__":
    main()
