"""The layout of the picture: where bars and edges stand."""

from __future__ import annotations

import re

from anabranch.cli.layout import MARGIN, MOST_ROWS, Layout, lay_out, reaches_answer
from anabranch.cli.timeline import BranchView, Timeline


def test_bars_stand_in_rows_and_inside_the_plot(example: Timeline) -> None:
    """Rows do not overlap, and every bar lies between the axis' ends, its parts in their order."""
    layout = lay_out(example, top=100.0)
    assert [bar.y for bar in layout.bars] == sorted({bar.y for bar in layout.bars})
    for bar in layout.bars:
        assert layout.top < bar.y < layout.bottom
        assert (
            layout.left
            <= bar.queued_x
            <= bar.started_x
            <= bar.first_x
            <= bar.wasted_x
            <= bar.end_x
            <= layout.right
        )


def test_time_is_to_scale(example: Timeline) -> None:
    """A branch that takes twice as long has a bar twice as long."""
    layout = lay_out(example)
    scales = {
        round((bar.end_x - bar.started_x) / (bar.branch.end(0) - (bar.branch.started_at or 0)), 3)
        for bar in layout.bars
    }
    assert len(scales) == 1


def test_waste_is_marked_in_its_share(example: Timeline) -> None:
    """A branch that was wholly wasted is marked from its first token on, others not at all."""
    bars = {bar.branch.id: bar for bar in lay_out(example).bars}
    assert bars[10].wasted_x == bars[10].first_x < bars[10].end_x
    assert bars[3].wasted_x == bars[3].end_x


def ends(path: str) -> tuple[float, float]:
    """First and last x of a path."""
    numbers = re.findall(r"M([\d.]+) ", path), re.findall(r"[\d.]+", path)
    horizontal = re.search(r"H([\d.]+)$", path)
    return float(numbers[0][0]), float(horizontal[1]) if horizontal else float(numbers[1][-2])


def test_forks_and_joins_lead_from_parent_to_child(example: Timeline) -> None:
    """There is an edge for each dependency; it begins at the parent and ends where the child begins."""
    layout = lay_out(example)
    bars = {bar.branch.id: bar for bar in layout.bars}
    forks = [edge for edge in layout.edges if edge.kind == "fork"]
    joins = [edge for edge in layout.edges if edge.kind == "join"]
    assert (len(forks), len(joins)) == (9, 6)
    assert all(bars[2].started_x < ends(edge.path)[0] < bars[2].end_x for edge in forks[1:])
    assert all(abs(ends(edge.path)[1] - bars[11].queued_x) < 3 for edge in joins)


def test_the_answer_is_written_while_branches_run(example: Timeline) -> None:
    """The answer's row shows when it was written; branches join it where their text stands in it."""
    layout = lay_out(example)
    assert layout.answer_y is not None
    assert layout.answer_y < layout.bottom
    assert all(begin < end for begin, end in layout.answer)
    assert sum(edge.kind == "answer" for edge in layout.edges) == 1  # the conclusion; the points flow into that
    reached = reaches_answer(example)
    assert set(reached) == {3, 4, 5, 6, 8, 9, 11}
    assert all(time >= (example.branches[id].ended_at or 0) - 0.2 for id, time in reached.items())


def many(size: int) -> Layout:
    timeline = Timeline(now=float(size))
    for id in range(1, size + 1):
        timeline.branches[id] = BranchView(
            id=id,
            parents=(id - 1,) if id % 7 else (),
            queued_at=id - 1.0,
            started_at=id - 0.5,
            ended_at=float(id),
        )
    return lay_out(timeline)


def test_two_hundred_branches_stay_readable() -> None:
    """With 200 branches rows are narrower, and labels still have a size that can be read."""
    layout = many(200)
    assert len(layout.bars) == 200
    assert layout.label_size >= 8
    assert layout.bar_height >= 6
    assert layout.bottom < 3000


def test_more_than_that_are_counted() -> None:
    """A run with too many branches shows the first ones and says how many are missing."""
    layout = many(MOST_ROWS + 11)
    assert (len(layout.bars), layout.hidden) == (MOST_ROWS, 11)


def test_runs_with_nothing_in_them() -> None:
    """No branch, no time, no answer: still a layout."""
    empty = lay_out(Timeline())
    assert (empty.bars, empty.answer_y, len(empty.ticks)) == ((), None, 1)
    waiting = Timeline(now=1.0)
    waiting.branches[1] = BranchView(id=1)
    bar = lay_out(waiting).bars[0]
    assert bar.queued_x >= MARGIN
    assert bar.end_x > bar.queued_x
