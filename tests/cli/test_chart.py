"""The chart: the tree with bars over time, as text."""

from __future__ import annotations

from time import process_time

import pytest
from rich.cells import cell_len

from anabranch.cli.chart import chart, headline
from anabranch.cli.timeline import BranchView, Timeline
from anabranch.orchestrator.events import Event


def lines(timeline: Timeline, width: int = 100, height: int | None = None) -> list[str]:
    return chart(timeline, width=width, height=height).plain.split("\n")


def test_the_example_has_a_row_for_each_branch_and_an_axis(example: Timeline) -> None:
    """Rows come in the order of the tree; the axis is the last line."""
    drawn = lines(example)
    assert len(drawn) == 12
    assert "outline" in drawn[1]
    assert "├─ ✗ 5 · Pick the radio link" in drawn[6]
    assert "failed: connection" in drawn[6]
    assert "wasted" in drawn[9]
    assert drawn[-1].strip().startswith("╵0 s")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(example_events: list[Event], width: int) -> None:
    """At any width and at any moment of the run, lines fit."""
    timeline = Timeline()
    for event in example_events:
        timeline.feed(event)
        if timeline.branches:
            assert max(cell_len(line) for line in lines(timeline, width)) <= width
            assert cell_len(headline(timeline, width).plain) <= width


def test_bars_show_waiting_reading_writing_and_waste(example: Timeline) -> None:
    """Each part of a branch's time has a line of its own."""
    drawn = lines(example, 160)
    assert "━" in drawn[2]
    assert "╍" not in drawn[2]
    assert "┈" in drawn[9]
    assert "╍" in drawn[9]
    assert "■" in drawn[9].split("ground", 1)[1]


def test_children_begin_where_their_parent_ended(example: Timeline) -> None:
    """Forks are visible: no bar of a point begins before the outline's ends."""
    drawn = lines(example, 160)
    width = max(cell_len(line) for line in drawn)
    outline_end = max(index for index, char in enumerate(drawn[1].ljust(width)) if char == "━")
    for line in drawn[2:10]:
        assert min(index for index, char in enumerate(line) if char in "┈━") >= outline_end - 1


def crowd(size: int) -> Timeline:
    timeline = Timeline(now=10.0)
    for id in range(1, size + 1):
        branch = BranchView(
            id=id, label=f"branch {id}", queued_at=0.1, started_at=1.0, state="running", tokens=5
        )
        if id % 2:
            branch.state, branch.ended_at = "done", 5.0
        timeline.branches[id] = branch
    timeline.branches[size].state = "failed"
    return timeline


def test_a_crowd_is_cut_to_the_height_and_counted() -> None:
    """What does not fit is told in one line; what fails or runs is shown before what is done."""
    drawn = lines(crowd(1000), height=20)
    assert len(drawn) == 20
    assert "… and 982 more: " in drawn[-2]
    assert "500 done" in drawn[-2]
    assert any("✗ branch 1000" in line for line in drawn)
    assert not any("✓" in line for line in drawn)


def test_a_crowd_is_drawn_quickly() -> None:
    """A frame of a thousand branches takes a fraction of the time between two frames."""
    timeline = crowd(1000)
    chart(timeline, width=100, height=30)
    began = process_time()
    for _ in range(10):
        chart(timeline, width=100, height=30)
    assert (process_time() - began) / 10 < 0.1


def test_names_from_a_model_cannot_reach_the_terminal_raw() -> None:
    """Escape sequences and markup in a label are shown, not obeyed."""
    timeline = Timeline(now=1.0)
    timeline.branches[1] = BranchView(
        id=1, label="[red]\x1b[31m\nx[/]", queued_at=0.1, started_at=0.0, state="running"
    )
    drawn = chart(timeline, width=100).plain
    assert "\x1b" not in drawn
    assert "[red]␛[31m x[/]" in drawn


def test_an_empty_run_has_an_empty_chart() -> None:
    """Before the first branch there is nothing but an axis."""
    assert len(lines(Timeline())) == 1
