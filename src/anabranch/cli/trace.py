"""`anabranch trace`: a run that was written down, as a tree with a timeline, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli import errors

if TYPE_CHECKING:
    from anabranch.cli.timeline import Timeline

DEFAULT_WIDTH = 120


def trace(
    file: Annotated[Path, typer.Argument(help="A trace, written by `anabranch ask --trace FILE`.")],
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a picture of the run to this SVG file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the picture to this page, with each branch's text.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", min=40, help="Columns of the printed chart.")] = None,
) -> None:
    """Print the branches of a run over time, and draw them."""
    with errors.told():
        from anabranch.cli.timeline import Timeline
        from anabranch.orchestrator.trace import read_trace

        timeline = Timeline.of(read_trace(file))
        _print(timeline, width)
        _draw(timeline, svg, html)


def _draw(timeline: Timeline, svg: Path | None, html: Path | None) -> None:
    from anabranch.cli import picture

    if svg is not None:
        _save(svg, picture.svg(timeline))
    if html is not None:
        _save(html, picture.html(timeline))


def _save(path: Path, text: str) -> None:
    from anabranch.orchestrator.errors import InvalidParameter

    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidParameter(
            path.suffix.lstrip(".") or "picture", f"cannot write {path}: {error.strerror}"
        ) from error
    errors.tell(f"wrote {path}")


def _print(timeline: Timeline, width: int | None) -> None:
    from rich.text import Text

    from anabranch.cli.chart import chart, headline
    from anabranch.cli.console import PlainConsole
    from anabranch.cli.summary import remarks, reported_line, summary_line
    from anabranch.cli.text import one_line

    console = PlainConsole()
    columns = width or (console.width if console.is_terminal else DEFAULT_WIDTH)
    console = PlainConsole(width=columns)
    if timeline.question:
        console.print(Text(one_line(timeline.question), "bold"))
    console.print(headline(timeline, columns))
    console.print()
    console.print(chart(timeline, width=columns), crop=False, no_wrap=True)
    console.print()
    if timeline.error:
        console.print(Text(f"failed: {one_line(timeline.error)}", "red"))
    elif not timeline.finished:
        console.print(Text("the trace ends before the run does", "yellow"))
    else:
        for line in filter(None, (summary_line(timeline.summary), reported_line(timeline.summary))):
            console.print(Text(line, "dim"), soft_wrap=True)
    for remark in remarks(timeline.summary) or timeline.warnings:
        console.print(Text(one_line(remark), "yellow"), soft_wrap=True)
