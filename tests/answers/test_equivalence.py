"""Which answers are the same, how that is found, and what becomes of comparisons that hang or crash."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.answers import Equivalence, Keys, equivalence, extract
from anabranch.orchestrator.errors import MissingExtra
from comparisons import strange


@pytest.fixture(scope="module")
def same() -> Iterator[Equivalence]:
    with Equivalence(timeout_s=20.0) as made:
        yield made


@pytest.mark.parametrize(
    ("gold", "predicted", "equal", "how"),
    [
        ("1,000", "1000", True, "number"),
        ("1{,}000", "1000.0", True, "number"),
        (r"\$12", "12", True, "number"),
        ("007", "7", True, "number"),
        ("1000000000000000000001", "1000000000000000000000", False, "number"),
        ("0." + "0" * 40 + "1", "0." + "0" * 40 + "2", False, "number"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True, "text"),
        (r"\left( 1, 2 \right)", "(1,2)", True, "text"),
        (r"\frac{1}{2}", "0.5", True, "math"),
        ("1/3", "0.333", False, "math"),
        ("2 1/2", "21/2", False, "math"),
        ("1e3", "1000", True, "number"),
        ("€5", "5", True, "number"),
        ("1.5e-3", "0.0015", True, "number"),
        ("1/2", "½", True, "text"),
        ("x^2", "x²", True, "text"),
        (r"12\text{ dollars}", r"\$12", True, "number"),
        ("5 cm", "5 m", False, "text"),
        (r"\sqrt{8}", r"2\sqrt{2}", True, "math"),
        ("x^2 - 1", "(x-1)(x+1)", True, "math"),
        (r"\{1, 2\}", r"\{2, 1\}", True, "math"),
        ("(1, 2)", "(2, 1)", False, "math"),
        ("5x - 7y = 0", "x + y = 0", False, "math"),
        ("", "", False, "unreadable"),
        ("5", "", False, "unreadable"),
        ("9" * 5000, "9" * 5000, True, "unreadable"),
        ("9" * 5000, "5", False, "unreadable"),
    ],
)
async def test_verdicts(same: Equivalence, gold: str, predicted: str, equal: bool, how: str) -> None:
    """Each says how it was found."""
    verdict = await same.verdict(gold, predicted)
    assert verdict.equal is equal
    assert verdict.how == how


@pytest.mark.parametrize(
    "answer", ["\\", "{", "$$", "\\frac{", "\x00", "\ud800", "∑" * 100, "(" * 500, "9**9**9**9"]
)
async def test_nothing_raises(same: Equivalence, answer: str) -> None:
    """Whatever the strings are, either way round."""
    await same.verdict("5", answer)
    await same.verdict(answer, "5")


async def test_a_comparison_that_hangs_is_killed() -> None:
    """It counts as different, and the next one is compared by a new process."""
    with Equivalence(timeout_s=0.5, compare=strange) as same:
        assert (await same.verdict("hang", "x")).how == "timeout"
        assert await same.verdict("yes", "x") == equivalence.Verdict(equal=True, how="math")
        assert not (await same.verdict("no", "x")).equal


async def test_a_comparison_that_crashes_takes_nothing_along() -> None:
    """It counts as unreadable, and others go on."""
    with Equivalence(compare=strange, processes=2) as same:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(same.verdict(gold, "x")) for gold in ("die", "yes", "no", "neither")]
    assert [task.result().how for task in asked] == ["unreadable", "math", "math", "unreadable"]


async def test_a_worker_that_is_killed_between_comparisons_is_replaced() -> None:
    """As the system does it when memory runs short."""
    others = set(multiprocessing.active_children())
    with Equivalence(compare=strange) as same:
        assert (await same.verdict("yes", "x")).equal
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
            child.join()
        verdicts = [await same.verdict(gold, "y") for gold in ("yes", "no", "neither")]
        assert {verdict.how for verdict in verdicts} <= {"math", "unreadable"}
        assert (await same.verdict("yes", "z")).equal


async def test_a_cancelled_comparison_is_killed() -> None:
    """The process is free for the next at once."""
    with Equivalence(timeout_s=300, compare=strange) as same:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(same.verdict("hang", "x"), 1.0)
        assert (await asyncio.wait_for(same.verdict("yes", "x"), 30)).equal


def test_it_works_in_threads() -> None:
    """math-verify's own time limits do not."""

    async def ask() -> bool:
        with Equivalence(timeout_s=30) as same:
            return (await same.verdict("1/2", "0.5")).equal

    async def in_thread() -> bool:
        return await asyncio.to_thread(lambda: asyncio.run(ask()))

    assert asyncio.run(in_thread())


async def test_verdicts_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question is not asked twice."""
    asked: list[str] = []

    async def ask(self: Equivalence, gold: str, predicted: str) -> equivalence.Verdict:
        asked.append(gold)
        return equivalence.Verdict(equal=False, how="math")

    monkeypatch.setattr(Equivalence, "_ask", ask)
    same = Equivalence(kept=2)
    for gold in ("a", "b", "a", "c", "a", "b"):
        await same.verdict(gold, "x")
    assert asked == ["a", "b", "c", "b"]


def test_without_math_verify_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compared."""
    monkeypatch.setattr(equivalence, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"anabranch\[answers\]"):
        Equivalence()


async def test_keys_of_equivalent_answers_are_equal(same: Equivalence) -> None:
    """The key is the first of them; a text without an answer has none."""
    keys = Keys("math", same)
    texts = [r"\boxed{\frac12}", "The answer is 0.5.", r"\boxed{2}", "nothing", r"\boxed{1/2}", "#### 2.0"]
    assert [await keys.of(text) for text in texts] == [r"\frac12", r"\frac12", "2", None, r"\frac12", "2"]


async def test_equivalent_answers_that_come_at_once_are_not_both_new(same: Equivalence) -> None:
    """Though each is compared in another process."""
    keys = Keys("math", same)
    assert await keys.of(r"\boxed{y}") == "y"  # so that the others have something to be compared with
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keys.of(text)) for text in (r"\boxed{x+1}", r"\boxed{1+x}") * 4]
    assert {task.result() for task in tasks} == {"x+1"}


async def test_keys_of_words_of_choices_and_of_ones_own() -> None:
    """Words but for case and punctuation; the letter; what the caller's function says."""
    assert [await Keys("text").of(text) for text in ("Paris!", " paris ", "Rome")] == ["paris", "paris", "rome"]
    assert [await Keys("choice").of(text) for text in ("(B)", "the answer is B", "?")] == ["B", "B", None]
    assert await Keys(lambda text: text[:1] or None).of("xyz") == "x"


async def test_agreement_with_labelled_pairs(same: Equivalence) -> None:
    """At least 99 of 100, and the pairs that differ are the two that are known."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "equivalence" / "answer_pairs.jsonl"
    if not path.exists():
        pytest.skip(
            "no data/equivalence/answer_pairs.jsonl; set ANABRANCH_TEST_DATA to a folder with labelled pairs"
        )
    wrong = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        gold = extract(pair["gold"]) if "boxed" in pair["gold"] else pair["gold"]
        whole = pair["needs_extraction"] or "boxed" in pair["predicted"]
        predicted = extract(pair["predicted"]) if whole else pair["predicted"]
        if (await same.verdict(gold or "", predicted or "")).equal != pair["equal"]:
            wrong.add(pair["id"])
    assert wrong == {"equiv-0058", "equiv-0279"}
