"""Loops are found; what only looks like one in mathematics is not."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.strategies.best_of_n.pruning import Looping
from anabranch.strategies.best_of_n.rules import Trace

RULE = Looping()
SMALL = Looping(times=3, least=20, least_wordless=40, longest=12)
PASSAGE = "Wait, let me check that again. If x = 3, then 2x + 1 = 7, which is not 9.\n\n"
PROSE = "".join(f"Step {k}: the product {k} * {k + 1} is {k * (k + 1)}.\n" for k in range(300))


def by_definition(text: str, rule: Looping) -> int | None:
    """Every period tried, letter by letter."""
    for period in range(1, rule.longest + 1):
        covered = period
        while covered < len(text) and text[-covered - 1] == text[-covered - 1 + period]:
            covered += 1
        worded = any(letter.isalpha() for letter in text[-period:])
        if covered >= max(rule.times * period, rule.least if worded else rule.least_wordless):
            return period
    return None


@pytest.mark.parametrize(
    ("text", "period"),
    [
        (PROSE + PASSAGE * 10, len(PASSAGE)),
        (PROSE + PASSAGE * 10 + PASSAGE[:30], len(PASSAGE)),
        (PROSE + "ha" * 400, 2),
        (PROSE + "0" * 4000, 1),
        (PROSE + (PROSE[:1800] + "\n") * 4, 1801),
        (PROSE + "| x | y |\n" * 60, 10),
    ],
)
def test_a_passage_again_and_again_is_a_loop(text: str, period: int) -> None:
    """Wherever in it the text ends, short or long; the period is the shortest."""
    assert RULE.period(text) == period
    assert RULE.pruned([Trace(number=3, text=text, complete=False)], []) == {3}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PROSE,
        PROSE + PASSAGE * 3,
        PROSE + "0." + "142857" * 150,
        PROSE + "1/3 = 0." + "3" * 2000,
        PROSE + "1" + "0" * 1000,
        PROSE + "| 0 | 1 | 1 | 0 |\n" * 40,
        PROSE + "|---" * 50,
        PROSE + " ".join(["1 + 1"] * 30),
        PROSE + "\\frac{1}{2} + " * 30,
        PROSE + "yes, " * 50,
        PROSE + " " * 500,
        PROSE + "".join(f"| {k} | {k % 2} | even or odd |\n" for k in range(200)),
        PROSE + "".join(f"Case {k}: x = {k} does not work.\n" for k in range(300)),
        "".join(str(k) for k in range(3000)),
        "".join(random.Random(3).choices("0123456789", k=5000)),
        PROSE + PASSAGE * 10 + "So the answer is 3.",
    ],
)
def test_ordinary_mathematics_is_no_loop(text: str) -> None:
    """Recurring decimals, tables, long sums, enumerations; and a loop that has come to its end."""
    assert RULE.period(text) is None


@given(
    start=st.text("ab1 ", max_size=15),
    passage=st.text("ab1 ", min_size=1, max_size=14),
    times=st.integers(1, 45),
    rest=st.integers(0, 14),
)
def test_the_search_finds_what_trying_every_period_finds(
    start: str, passage: str, times: int, rest: int
) -> None:
    """With small thresholds, at and around them."""
    text = start + passage * times + passage[:rest]
    assert SMALL.period(text) == by_definition(text, SMALL)


def test_the_thresholds_are_where_they_are_said_to_be() -> None:
    """Four whole times and 600 characters, or 4,000 without a letter."""
    assert RULE.period("!" + "ab" * 299 + "b") is None
    assert RULE.period("ab" * 300) == 2
    assert RULE.period("b" + "ab" * 299) is None
    assert RULE.period("7" * 3999) is None
    assert RULE.period("7" * 4000) == 1
    long = "".join(chr(0x4E00 + k) for k in range(2000))
    assert RULE.period(long * 4) == 2000
    assert RULE.period((long * 4)[1:]) is None
    assert RULE.period((long + "x") * 5) is None


def recorded(name: str) -> list[tuple[str, bool]]:
    """Texts of recorded traces, and whether they are right."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "traces" / name
    if not path.exists():
        pytest.skip(f"no {path}; set ANABRANCH_TEST_DATA to a folder with recorded traces")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        samples = [sample for line in lines for sample in json.loads(line)["samples"]]
    return [(sample["text"], sample["correct"]) for sample in samples]


def test_no_recorded_solution_of_math_loops() -> None:
    """Of 800, right or wrong, wherever they are cut."""
    texts = [text for text, _ in recorded("qwen_math100x8_rm.jsonl.gz")]
    assert not any(RULE.period(text[: len(text) * part // 7]) for text in texts for part in range(1, 8))


def test_the_loops_that_were_recorded_are_found() -> None:
    """Of 10,000 tries at the game of 24, three loop until they are cut, and none of these is right."""
    found = [right for text, right in recorded("tot_game24_gpt4_cot_100x100.jsonl.gz") if RULE.period(text)]
    assert found == [False] * 3


@pytest.mark.parametrize("field", ["times", "least", "least_wordless", "longest"])
def test_bad_parameters_are_named(field: str) -> None:
    """The error says which field."""
    with pytest.raises(InvalidParameter) as raised:
        Looping(**{field: 0})
    assert raised.value.field == field
