"""The branches of a run as text for a terminal: the tree at the left, bars over time at the right.

The live display and `anabranch trace` show the same chart. Nothing that a model wrote reaches the terminal as markup
or as an escape sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from anabranch.cli.palette import colour
from anabranch.cli.scale import tick_labels, ticks
from anabranch.cli.text import clip, count, one_line
from anabranch.cli.timeline import BranchView, State, Timeline
from anabranch.cli.tree import TreeRow, tree_rows

QUEUED, PREFILL, DECODE, WASTED = "┈", "─", "━", "╍"
_MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("○", "dim"),
    "running": ("●", ""),
    "retrying": ("↻", "yellow"),
    "done": ("✓", "green"),
    "cut": ("✂", "yellow"),
    "stopped": ("■", "yellow"),
    "failed": ("✗", "red"),
}
_IMPORTANCE: dict[State, int] = {
    "failed": 0,
    "running": 1,
    "retrying": 1,
    "stopped": 2,
    "cut": 3,
    "waiting": 4,
    "done": 5,
}
_FIGURES = 20
"""Columns for tokens and speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Widths in columns; `roles` and `bar` may be 0, and are then not drawn."""

    name: int
    roles: int
    bar: int
    remark: int


def chart(
    timeline: Timeline, *, width: int, height: int | None = None, rows: Sequence[TreeRow] | None = None
) -> Text:
    """The chart, at most `width` columns wide and `height` lines high; None shows every branch.

    Args:
        rows: the tree, where the caller keeps it between two calls.
    """
    rows = tree_rows(timeline.branches) if rows is None else rows
    shown = _most_important(rows, None if height is None else height - 1)
    columns = _columns(shown, timeline, width)
    lines = [_line(row, columns, timeline.now) for row in shown]
    if len(shown) < len(rows):
        lines.append(_hidden(rows, shown, width))
    if columns.bar:
        lines.append(_axis(columns, timeline.now))
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _most_important(rows: Sequence[TreeRow], most: int | None) -> Sequence[TreeRow]:
    """The rows that fit, those first in which something happens, in the order of the tree."""
    if most is None or len(rows) <= most:
        return rows
    ranked = sorted(range(len(rows)), key=lambda index: (_IMPORTANCE[rows[index].branch.state], index))
    return [rows[index] for index in sorted(ranked[: max(1, most - 1)])]


def _hidden(rows: Sequence[TreeRow], shown: Sequence[TreeRow], width: int) -> Text:
    ids = {row.branch.id for row in shown}
    states: dict[str, int] = {}
    for row in rows:
        if row.branch.id not in ids:
            states[row.branch.state] = states.get(row.branch.state, 0) + 1
    detail = ", ".join(f"{number:,} {state}" for state, number in states.items())
    return Text(clip(f"… and {len(rows) - len(shown):,} more: {detail}", width), "dim")


def _columns(rows: Sequence[TreeRow], timeline: Timeline, width: int) -> _Columns:
    longest = max((cell_len(row.prefix) + cell_len(one_line(row.branch.name)) for row in rows), default=0)
    name = max(16, min(longest + 2, width * 3 // 8, 44))
    all_roles = {branch.role for branch in timeline.branches.values()}
    roles = min(10, max((len(role) for role in all_roles), default=0)) + 1
    roles = roles if len(all_roles) > 1 and width >= 90 else 0
    trouble = any(row.branch.state in ("failed", "retrying") for row in rows)
    remark = max(12, width // 5) if trouble else 12
    bar = width - name - roles - _FIGURES - remark - 2
    if bar < 12:
        return _Columns(name=max(8, width - _FIGURES - 9), roles=0, bar=0, remark=8)
    return _Columns(name=name, roles=roles, bar=bar, remark=remark)


def _line(row: TreeRow, columns: _Columns, now: float) -> Text:
    branch = row.branch
    mark, style = _MARKS[branch.state]
    line = Text.assemble((row.prefix, "dim"))
    line.append(mark + " ", style or colour(branch.role).terminal)
    line.append(one_line(branch.name), "dim strike" if _all_wasted(branch) else "")
    line.truncate(columns.name, overflow="ellipsis", pad=True)
    line.append(" ")
    if columns.roles:
        line.append(
            clip(one_line(branch.role), columns.roles - 1).ljust(columns.roles), colour(branch.role).terminal
        )
    if columns.bar:
        line.append_text(_bar(branch, columns.bar, now)).append(" ")
    return line.append_text(_figures(branch, columns, now))


def _all_wasted(branch: BranchView) -> bool:
    return branch.ended and branch.wasted >= branch.tokens > 0


def _bar(branch: BranchView, width: int, now: float) -> Text:
    """Waiting, reading the prompt, writing: each with its own line; at least one cell for a branch that began."""
    scale = (width - 1) / now if now > 0 else 0.0
    end = branch.end(now)
    started = end if branch.started_at is None else branch.started_at
    first = end if branch.first_token_at is None else branch.first_token_at
    cells = [int(t * scale) for t in (branch.queued_at, started, min(first, end), end)]
    style = colour(branch.role).terminal
    bar = Text(" " * cells[0])
    bar.append(QUEUED * (cells[1] - cells[0]), "dim")
    bar.append(PREFILL * (cells[2] - cells[1]), style)
    used = round((cells[3] - cells[2]) * (1 - branch.wasted / branch.tokens)) if branch.tokens else 0
    bar.append(DECODE * used, style)
    bar.append(WASTED * (cells[3] - cells[2] - used), "yellow")
    bar.append(*_bar_end(branch, style))
    bar.append(" " * (width - len(bar)))
    return bar


def _bar_end(branch: BranchView, style: str) -> tuple[str, str]:
    if branch.state in ("failed", "stopped"):
        return _MARKS[branch.state]
    if branch.started_at is None or branch.state == "retrying":
        return QUEUED, "dim"
    if branch.wasted:
        return WASTED, "yellow"
    return (DECODE, style) if branch.first_token_at is not None else (PREFILL, style)


def _figures(branch: BranchView, columns: _Columns, now: float) -> Text:
    rate = branch.rate(now)
    text = Text(f"{branch.tokens:>6,} tok " if branch.started_at is not None else " " * 11)
    text.append(f"{rate:>5.0f}/s  " if rate is not None and rate < 99_999 else " " * 9, "dim")
    text.append(*_remark(branch))
    text.truncate(_FIGURES + columns.remark, overflow="ellipsis")
    return text


def _remark(branch: BranchView) -> tuple[str, str]:
    if branch.state == "failed":
        return f"failed: {one_line(branch.note)}", "red"
    if branch.state == "retrying":
        return f"retry {branch.attempts}: {one_line(branch.note)}", "yellow"
    if branch.wasted:
        return f"wasted {branch.wasted:,}" if branch.wasted < branch.tokens else "wasted", "yellow"
    if branch.state in ("stopped", "cut"):
        return branch.finish_reason, "yellow"
    return ("waiting", "dim") if branch.state == "waiting" else ("", "")


def _axis(columns: _Columns, total: float) -> Text:
    times = ticks(total, max(3, columns.bar // 7))
    left = columns.name + 1 + columns.roles
    line = [" "] * (left + columns.bar)
    for time, label in zip(times, tick_labels(times), strict=True):
        at = left + (int(time * (columns.bar - 1) / total) if total > 0 else 0)
        if at + len(label) < len(line):
            line[at : at + len(label) + 1] = f"╵{label}"
    return Text("".join(line).rstrip(), "dim")


def headline(timeline: Timeline, width: int) -> Text:
    """What runs, and how far it is, on one line of at most `width` columns."""
    states = timeline.states()
    parts = [f"{timeline.now:.1f} s", count(len(timeline.branches), "branch")]
    parts += [
        f"{states[state]:,} {state}" for state in ("running", "retrying", "waiting", "failed") if states[state]
    ]
    parts.append(count(timeline.tokens, "token"))
    if timeline.now > 0 and timeline.tokens:
        parts.append(f"{timeline.tokens / timeline.now:.0f} tok/s")
    line = Text.assemble((one_line(timeline.strategy) or "run", "bold"))
    line.append(f" on {one_line(timeline.backend)}" if timeline.backend else "")
    line.append("  " + " · ".join(parts), "dim")
    line.truncate(width, overflow="ellipsis")
    return line
