"""Where everything stands in the picture of a run: rows, bars and edges, in pixels.

Pure: a timeline in, numbers out. `picture` puts them into a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from anabranch.cli.scale import tick_labels, ticks
from anabranch.cli.text import clip, one_line
from anabranch.cli.timeline import BranchView, Timeline
from anabranch.cli.tree import TreeRow, tree_rows

MARGIN = 28
MOST_ROWS = 500
FIGURES_WIDTH = 112
"""Room at the right for the figures of each branch."""
MOST_ANSWER_EDGES = 64
_ROW_HEIGHTS = ((16, 27), (40, 21), (100, 16))
_LEAST_ROW_HEIGHT = 13
_TRUNK = 9
"""How far from a bar's end the line of a fork or join runs down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A branch in its row. The `x`s are where it was queued, was started, wrote its first token, and ended.

    Attributes:
        wasted_x: where the wasted part begins; equal to `end_x` where nothing was wasted.
        y: the middle of the row.
    """

    branch: BranchView
    label: str
    y: float
    queued_x: float
    started_x: float
    first_x: float
    wasted_x: float
    end_x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A line from one bar to another: `path` is SVG path data, `kind` is fork, join or answer."""

    kind: str
    role: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on the time axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The picture, but for its words.

    Attributes:
        top, bottom: the first row's upper and the last row's lower edge.
        left, right: where time 0 and the end of the run are.
        answer: begin and end of each stretch in which the answer was written.
        answer_y: the middle of the answer's row; None where no answer was written.
        hidden: branches that are not drawn, being too many.
    """

    width: int
    top: float
    bottom: float
    left: float
    right: float
    row_height: int
    bar_height: int
    label_size: float
    bars: tuple[Bar, ...]
    edges: tuple[Edge, ...]
    ticks: tuple[Tick, ...]
    answer: tuple[tuple[float, float], ...]
    answer_y: float | None
    hidden: int


def lay_out(timeline: Timeline, *, width: int = 960, top: float = 0.0) -> Layout:
    """The layout of a run in a picture `width` pixels wide, its rows beginning `top` pixels down."""
    all_rows = tree_rows(timeline.branches)
    rows = all_rows[:MOST_ROWS]
    row_height = next((height for most, height in _ROW_HEIGHTS if len(rows) <= most), _LEAST_ROW_HEIGHT)
    label_size = min(12.5, row_height * 0.66)
    left, label_columns = _gutter(rows, label_size, width)
    scale = _Scale(left=left, right=float(width - MARGIN - FIGURES_WIDTH), total=timeline.now)
    bars = tuple(_bar(row, label_columns, scale, top + row_height * (i + 0.5)) for i, row in enumerate(rows))
    answer_y = top + row_height * (len(rows) + 0.75) if timeline.answer else None
    edges = [*_edges(bars), *_answer_edges(bars, timeline, scale, answer_y)]
    return Layout(
        width=width,
        top=top,
        bottom=top + row_height * (len(rows) + (1.5 if timeline.answer else 0)),
        left=left,
        right=scale.right,
        row_height=row_height,
        bar_height=round(row_height * 0.52),
        label_size=label_size,
        bars=bars,
        edges=tuple(edges),
        ticks=tuple(scale.ticks()),
        answer=tuple(_stretches(timeline, scale)),
        answer_y=answer_y,
        hidden=len(all_rows) - len(rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    left: float
    right: float
    total: float

    def x(self, time: float) -> float:
        share = min(1.0, max(0.0, time / self.total)) if self.total > 0 else 0.0
        return self.left + share * (self.right - self.left)

    def ticks(self) -> Iterator[Tick]:
        times = ticks(self.total, max(2, int((self.right - self.left) // 80)))
        for time, label in zip(times, tick_labels(times), strict=True):
            yield Tick(x=self.x(time), label=label)


def _gutter(rows: Sequence[TreeRow], size: float, width: int) -> tuple[float, int]:
    """Where the plot begins, and how many columns a label may take."""
    column = size * 0.56
    longest = max((cell_len(one_line(row.branch.name)) for row in rows), default=0)
    columns = max(8, min(longest, int(width * 0.28 / column)))
    return MARGIN + 16 + columns * column + 16, columns


def _bar(row: TreeRow, label_columns: int, scale: _Scale, y: float) -> Bar:
    branch = row.branch
    end = branch.end(scale.total)
    started = end if branch.started_at is None else min(branch.started_at, end)
    first = end if branch.first_token_at is None else min(max(branch.first_token_at, started), end)
    # a retry moves the start behind the first queueing, never the first token before the start
    wasted = end - (end - first) * min(1.0, branch.wasted / branch.tokens) if branch.tokens else end
    return Bar(
        branch=branch,
        label=clip(one_line(branch.name), label_columns),
        y=y,
        queued_x=scale.x(branch.queued_at),
        started_x=scale.x(started),
        first_x=scale.x(first),
        wasted_x=scale.x(wasted),
        end_x=max(scale.x(end), scale.x(started) + 1.5),
    )


def _edges(bars: Sequence[Bar]) -> Iterator[Edge]:
    by_id = {bar.branch.id: bar for bar in bars}
    for bar in bars:
        parents = [by_id[parent] for parent in bar.branch.parents if parent in by_id]
        for parent in parents:
            if len(parents) > 1:
                path = join_path(parent.end_x, parent.y, bar.queued_x, bar.y)
                yield Edge(kind="join", role=parent.branch.role, path=path)
            else:
                path = fork_path(_trunk(parent), parent.y, bar.queued_x, bar.y)
                yield Edge(kind="fork", role=parent.branch.role, path=path)


def _trunk(parent: Bar) -> float:
    """Where the line to the children leaves a bar: near its end, and never outside it."""
    return max(parent.end_x - _TRUNK, (parent.started_x + parent.end_x) / 2)


def fork_path(trunk: float, y1: float, x2: float, y2: float) -> str:
    """Down from the parent's bar, then in a curve into the child: siblings share the way down."""
    r = min(11.0, abs(y2 - y1) / 2, max(1.0, x2 - trunk))
    turn = r if y2 >= y1 else -r
    curve = f"Q{trunk:.1f} {y2:.1f} {trunk + r:.1f} {y2:.1f}"
    return f"M{trunk:.1f} {y1:.1f}V{y2 - turn:.1f}{curve}H{x2:.1f}"


def join_path(x1: float, y1: float, x2: float, y2: float) -> str:
    """On from the parent's end, then in a curve down into the child: parents share the way down."""
    trunk = x2 - _TRUNK
    if trunk - x1 < 3:
        return fork_path(trunk, y1, x2, y2)
    r = min(11.0, abs(y2 - y1) / 2, trunk - x1)
    turn = r if y2 >= y1 else -r
    first = f"Q{trunk:.1f} {y1:.1f} {trunk:.1f} {y1 + turn:.1f}"
    second = f"Q{trunk:.1f} {y2:.1f} {trunk + r:.1f} {y2:.1f}"
    return f"M{x1:.1f} {y1:.1f}H{trunk - r:.1f}{first}V{y2 - turn:.1f}{second}"


def _answer_edges(bars: Sequence[Bar], timeline: Timeline, scale: _Scale, y: float | None) -> Iterator[Edge]:
    """From each last branch of its line into the answer, if its text stands there."""
    if y is None or len(bars) > MOST_ANSWER_EDGES:
        return
    reached = reaches_answer(timeline)
    parents = {parent for bar in bars for parent in bar.branch.parents}
    for bar in bars:
        if bar.branch.id in reached and bar.branch.id not in parents:
            path = answer_path(bar.end_x, bar.y, scale.x(reached[bar.branch.id]), y)
            yield Edge(kind="answer", role=bar.branch.role, path=path)


def answer_path(x1: float, y1: float, x2: float, y2: float) -> str:
    """On from a branch's end to the time at which its text stood in the answer, then down onto it."""
    if x2 - x1 < 3:
        return f"M{min(x1, x2) - 3:.1f} {y1:.1f}V{y2:.1f}"
    r = min(11.0, abs(y2 - y1) / 2, x2 - x1)
    return f"M{x1:.1f} {y1:.1f}H{x2 - r:.1f}Q{x2:.1f} {y1:.1f} {x2:.1f} {y1 + r:.1f}V{y2:.1f}"


def reaches_answer(timeline: Timeline) -> Mapping[int, float]:
    """For each generation whose text stands in the answer, the time at which its last character was written there."""
    answer = timeline.answer_text
    reached: dict[int, float] = {}
    for branch in timeline.branches.values():
        text = branch.text.strip()
        found = answer.find(text) if text else -1
        if found >= 0:
            reached[branch.id] = _written_at(timeline, found + len(text))
    return reached


def _written_at(timeline: Timeline, length: int) -> float:
    for time, piece in timeline.answer:
        length -= len(piece)
        if length <= 0:
            return time
    return timeline.now


def _stretches(timeline: Timeline, scale: _Scale) -> Iterator[tuple[float, float]]:
    """The answer's pieces, those that stand near one another taken together."""
    gap = max(18.0, 0.03 * (scale.right - scale.left))
    begin = end = None
    for time, _ in timeline.answer:
        x = scale.x(time)
        if begin is None or end is None:
            begin, end = x, x
        elif x - end <= gap:
            end = x
        else:
            yield begin, max(end, begin + 1.5)
            begin, end = x, x
    if begin is not None and end is not None:
        yield begin, max(end, begin + 1.5)
