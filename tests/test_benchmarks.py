"""The benchmarks run, at a small size; what they measure is for people to judge, on a quiet machine."""

from __future__ import annotations

import json
import random

import makespan
import overhead
import prefix
import pytest
import report
import skeleton

ROUNDING = 1e-6


def test_overhead_has_a_line_for_each_kind_and_count() -> None:
    """Burst and paced replies are each timed at every count, with and without the engine."""
    found = overhead.measure_cpu([20, 40], fan_out=10, repeats=1)
    assert [(row[0], row[1]) for row in found.rows] == [
        ("burst", 20),
        ("burst", 40),
        ("paced", 20),
        ("paced", 40),
    ]
    assert all(isinstance(cell, float) and cell > 0 for row in found.rows for cell in row[2:])
    assert len(found.targets) == 4


def test_memory_grows_with_what_is_kept() -> None:
    """A record alone is smallest, a live generation with all its pieces is largest."""
    found = overhead.measure_memory(100, fan_out=50)
    record, value, live = (row[1] for row in found.rows)
    assert isinstance(record, float)
    assert isinstance(value, float)
    assert isinstance(live, float)
    assert record < value < live


@pytest.mark.parametrize("shape", makespan.SHAPES)
def test_no_schedule_beats_the_bound(shape: str) -> None:
    """Neither the engine nor the all-knowing scheduler is quicker than max(span, work / P)."""
    figures = makespan.try_one(shape, nodes=60, slots=4, seed=1)
    assert figures.over_bound >= 1 - ROUNDING
    assert figures.over_bound / figures.over_known >= 1 - ROUNDING


def test_plans_name_parents_before_children() -> None:
    """The plans are graphs: no node needs itself or one that comes later."""
    for shape in makespan.SHAPES:
        plan = makespan.SHAPES[shape](50, random.Random(0))
        order = {node: index for index, node in enumerate(plan)}
        assert len(plan) == 50
        assert all(order[need] < order[node] for node, needs in plan.items() for need in needs)


def test_on_enough_slots_the_engine_takes_the_span() -> None:
    """With a slot for every node each starts the moment its parents are done: the makespan is the longest chain."""
    figures = makespan.try_one("sparse", nodes=60, slots=60, seed=2)
    assert figures.over_bound == pytest.approx(1.0)
    assert figures.over_known == pytest.approx(1.0)


def test_makespan_has_a_line_for_each_shape_and_number_of_slots() -> None:
    """Nine lines, two targets."""
    found = makespan.measure(nodes=30, graphs=1)
    assert len(found.rows) == len(makespan.SHAPES) * len(makespan.SLOTS)
    assert len(found.targets) == 2


def test_each_distinct_prefix_counts_once() -> None:
    """The least possible is the size of the prefix tree, equal prompts included once."""
    assert prefix.distinct([]) == 0
    assert prefix.distinct([(1, 2, 3), (1, 2, 4), (1, 2), (1, 2, 3), (5,)]) == 5


@pytest.mark.llama
@pytest.mark.timeout(600)
async def test_the_embedded_engine_computes_each_prefix_once(local_backend_url: str) -> None:
    """On a cold engine, what is computed is at most 5 % over the size of the prefix tree."""
    figures = await prefix.try_one(local_backend_url, "one fork", 4)
    assert figures.least <= figures.computed <= figures.least * 1.05


@pytest.mark.sglang
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", prefix.SHAPES)
async def test_sglang_computes_each_prefix_once(sglang_url: str, shape: str) -> None:
    """On a cold server, what 16 branches compute is at most 5 % over the size of the prefix tree."""
    figures = await prefix.try_one(sglang_url, shape, 16)
    assert figures.least <= figures.computed <= figures.least * 1.05


async def test_skeleton_and_sequential_stand_side_by_side() -> None:
    """Two lines of figures and one of ratios for each load."""
    figures, ratios = await skeleton.measure(
        ["scripted:"], questions=skeleton.QUESTIONS[:2], loads=(1, 2), tokens=80
    )
    assert [row[2] for row in figures.rows] == ["sequential", "skeleton"] * 2
    assert len(ratios.rows) == 2


def shown(
    form: str, capsys: pytest.CaptureFixture[str], *, check: bool = False
) -> tuple[str, int | str | None]:
    table = report.Report(title="A table", columns=("name", "figure"))
    table.row("one", 1234.5)
    table.target("too much", 2.0, 1.0)
    arguments = [*([f"--{form}"] if form != "table" else []), *(["--check"] if check else [])]
    with pytest.raises(SystemExit) as ended:
        report.finish([table], report.parser(None).parse_args(arguments))
    return capsys.readouterr().out, ended.value.code


def test_a_missed_target_is_shown_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a mark at the target, and the exit code is 0; with `--check` it is 1."""
    out, code = shown("table", capsys)
    assert "✗ too much: 2.000 (target ≤ 1)" in out
    assert code == 0
    assert shown("table", capsys, check=True)[1] == 1


def test_markdown_is_a_table_of_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    """Ready to be put into a document."""
    out, _ = shown("markdown", capsys)
    assert "| name | figure |\n| --- | ---: |\n| one | 1,234 |" in out


def test_json_has_the_plain_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures are numbers there, and each target says whether it is met."""
    out, _ = shown("json", capsys)
    table = json.loads(out)["tables"][0]
    assert table["rows"] == [{"name": "one", "figure": 1234.5}]
    assert table["targets"] == [{"name": "too much", "value": 2.0, "at_most": 1.0, "met": False}]
