"""The picture of a run: a self-contained SVG, or an HTML page with the branches' texts under the pointer.

Light and dark, as the reader's system has it. All text is escaped by the template engine; nothing is loaded from
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from anabranch.cli.layout import MARGIN, Bar, Layout, lay_out
from anabranch.cli.palette import colour
from anabranch.cli.summary import figures, remarks
from anabranch.cli.text import clip, harmless, one_line, seconds, wrap
from anabranch.cli.timeline import BranchView, Timeline

if TYPE_CHECKING:
    from jinja2 import Environment

SVG_WIDTH, HTML_WIDTH = 960, 1200
TITLE_SIZE, TITLE_LINE, HEAD = 19, 25, 34
MOST_TEXT = 4_000
"""Characters of a branch's text that the page carries."""


def svg(timeline: Timeline, *, width: int = SVG_WIDTH) -> str:
    """The picture as an SVG document."""
    return _environment().get_template("picture.svg.j2").render(_values(timeline, width), titles=True)


def html(timeline: Timeline, *, width: int = HTML_WIDTH) -> str:
    """The picture as a page: hovering or focusing a branch shows its text."""
    drawing = _environment().get_template("picture.svg.j2").render(_values(timeline, width), titles=False)
    texts = {branch.id: _about(branch, timeline.now) for branch in timeline.branches.values()}
    page = _environment().get_template("picture.html.j2")
    return page.render(title=one_line(timeline.question) or "run", drawing=drawing, texts=texts)


def _values(timeline: Timeline, width: int) -> dict[str, Any]:
    title = wrap(one_line(timeline.question) or "run", int((width - 2 * MARGIN) / (TITLE_SIZE * 0.54)), 2)
    figures_y = HEAD + len(title) * TITLE_LINE + 16
    layout = lay_out(timeline, width=width, top=figures_y + 58)
    notes = _notes(timeline, layout)
    legend = list(_legend(timeline, layout))
    below = legend[-1].y
    return {
        "layout": layout,
        "margin": MARGIN,
        "title": title,
        "title_y": [HEAD + line * TITLE_LINE + 4 for line in range(len(title))],
        "subtitle": _subtitle(timeline),
        "figures": list(_tiles(timeline, width)),
        "figures_y": figures_y,
        "legend": legend,
        "below": below,
        "notes": [clip(note, int((width - 2 * MARGIN) / 6.3)) for note in notes],
        "height": round(below + 24 + 18 * len(notes)),
        "colours": {role: colour(role) for role in _roles(timeline)},
        "caption": {bar.branch.id: _caption(bar.branch, timeline.now) for bar in layout.bars},
        "about": {bar.branch.id: _about(bar.branch, timeline.now)["facts"] for bar in layout.bars},
    }


def _roles(timeline: Timeline) -> list[str]:
    return list(dict.fromkeys(branch.role for branch in timeline.branches.values()))


def _subtitle(timeline: Timeline) -> str:
    parts = [timeline.strategy, timeline.backend, str(timeline.summary.get("model") or "")]
    if timeline.started_at is not None:
        parts.append(f"{datetime.fromtimestamp(timeline.started_at, UTC):%Y-%m-%d %H:%M} UTC")
    return clip(" · ".join(one_line(part) for part in parts if part), 130)


def _tiles(timeline: Timeline, width: int) -> Iterator[tuple[float, str, str]]:
    shown = figures(timeline.summary) or [
        ("branches", f"{len(timeline.branches):,}"),
        ("work", f"{timeline.tokens:,} tok"),
        ("wasted", f"{timeline.wasted:,} tok"),
        ("so far", seconds(timeline.now)),
    ]
    step = min(118.0, (width - 2 * MARGIN) / len(shown))
    for index, (name, value) in enumerate(shown):
        yield MARGIN + index * step, name, value


def _notes(timeline: Timeline, layout: Layout) -> list[str]:
    notes = remarks(timeline.summary) or [one_line(warning) for warning in timeline.warnings]
    if timeline.error:
        notes.insert(0, f"failed: {one_line(timeline.error)}")
    if not timeline.finished:
        notes.insert(0, "the trace ends before the run does")
    if layout.hidden:
        notes.insert(0, f"{layout.hidden:,} more branches are not drawn")
    return notes[:6]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the legend; `kind` says which mark to draw, in the colour of `role` where it has one."""

    x: float
    y: float
    kind: str
    role: str
    words: str


def _legend(timeline: Timeline, layout: Layout) -> Iterator[Entry]:
    """Only what the picture shows, in as many lines as it takes."""
    x, y = float(MARGIN), layout.bottom + 52
    for kind, role, words in _marks(timeline, layout):
        room = 24 + cell_len(words) * 6.1 + 20
        if x + room > layout.width - MARGIN / 2 and x > MARGIN:
            x, y = float(MARGIN), y + 20
        yield Entry(x=x, y=y, kind=kind, role=role, words=words)
        x += room


def _marks(timeline: Timeline, layout: Layout) -> Iterator[tuple[str, str, str]]:
    branches = [bar.branch for bar in layout.bars]
    for role in _roles(timeline):
        yield "role", role, clip(one_line(role), 30)
    if any(bar.started_x - bar.queued_x > 2 for bar in layout.bars):
        yield "wait", "", "waiting for a slot"
    yield "prefill", "", "reading the prompt"
    yield "first", "", "first token"
    if any(branch.wasted for branch in branches):
        yield "wasted", "", "wasted"
    for state in ("failed", "stopped"):
        if any(branch.state == state for branch in branches):
            yield state, "", state


def _caption(branch: BranchView, now: float) -> str:
    """The words beside a bar."""
    if branch.state == "failed":
        return "failed"
    rate = branch.rate(now)
    speed = f" · {rate:.0f}/s" if rate is not None and len(branch.pieces) > 1 else ""
    return f"{branch.tokens:,} tok{speed}" if branch.started_at is not None else "never started"


def _about(branch: BranchView, now: float) -> dict[str, str]:
    """What the page says about a branch."""
    facts = [one_line(branch.role), one_line(branch.finish_reason or branch.state), f"{branch.tokens:,} tokens"]
    if branch.prompt:
        facts.append(f"prompt {branch.prompt:,}, of which {branch.cached:,} cached")
    if branch.wasted:
        facts.append(f"{branch.wasted:,} wasted")
    facts.append(f"{seconds(branch.queued_at)} to {seconds(branch.end(now))}")
    if branch.attempts > 1:
        facts.append(f"attempt {branch.attempts}")
    text = harmless(branch.text)
    return {
        "name": one_line(branch.name),
        "facts": " · ".join(facts),
        "note": one_line(branch.note),
        "text": text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + " …",
    }


def bar_classes(bar: Bar) -> str:
    """CSS classes of a bar: how it ended."""
    wasted = " wasted" if bar.wasted_x < bar.end_x else ""
    return f"bar {bar.branch.state}{wasted}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("anabranch.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["px"] = lambda value: f"{value:.1f}".removesuffix(".0")
    environment.filters["classes"] = bar_classes
    return environment
