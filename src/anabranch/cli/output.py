"""Where an answer goes: to a terminal, with the branches shown while they run, or into a pipe, or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from anabranch.cli import errors
from anabranch.cli.console import PlainConsole
from anabranch.cli.live import LiveDisplay
from anabranch.cli.summary import remarks, reported_line, summary_line
from anabranch.cli.text import harmless
from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.events import AnswerDelta, Event


class PlainText:
    """Writes the answer's text as it comes; exactly as it is, unless a terminal is to show it."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._terminal = file, file.isatty()
        self._written: list[str] = []

    def feed(self, event: Event) -> None:
        """Write what an event adds to the answer. Raises BrokenPipeError when the reader went away."""
        if isinstance(event, AnswerDelta) and event.text:
            self._write(event.text)

    def conclude(self, text: str) -> None:
        """Write what is still missing, and end the last line."""
        written = "".join(self._written)
        if text.startswith(written):
            self._write(text[len(written) :])
        if text and not text.endswith("\n"):
            self._write("\n")

    def abandon(self) -> None:
        """End a line that was begun."""
        if self._written and not self._written[-1].endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:
        self._written.append(text)
        self._file.write(harmless(text) if self._terminal else text)
        self._file.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How one run is shown.

    Attributes:
        display: the live tree, if there is one.
        plain: streams the answer's text, if nothing else shows it.
        as_json: print one JSON object at the end, and nothing else on standard output.
        figures: where the line of figures goes; None leaves it out.
    """

    display: LiveDisplay | None = None
    plain: PlainText | None = None
    as_json: bool = False
    figures: Console | None = None

    def conclude(self, answer: Answer) -> None:
        """Show the answer, as far as it was not, and what there is to say about it."""
        if self.as_json:
            _print_line(json.dumps(answer.to_dict(), ensure_ascii=False))
            return
        if self.plain is not None:
            self.plain.conclude(answer.text)
        elif self.figures is not None:
            self.figures.print(Text(harmless(answer.text)))
        self._remark(answer.to_dict())

    def abandon(self) -> None:
        """The run did not come to its end: leave what there was of the answer on the terminal."""
        if self.plain is not None:
            self.plain.abandon()
        elif self.display is not None and self.figures is not None:
            self.figures.print(Text(harmless(self.display.timeline.answer_text)))

    def _remark(self, summary: Mapping[str, Any]) -> None:
        if self.figures is not None:
            self.figures.print()
            for line in filter(None, (summary_line(summary), reported_line(summary))):
                self.figures.print(Text(line, "dim"), soft_wrap=True)
        for remark in remarks(summary):
            if self.figures is not None:
                self.figures.print(Text(remark, "yellow"), soft_wrap=True)
            else:
                errors.tell(remark, "warning")


def choose_output(*, as_json: bool, show: bool | None) -> Output:
    """The output that fits: standard output a terminal or not, and what the user asked for."""
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if as_json or not on_terminal:
        console = PlainConsole(stderr=True) if show else None
        display = LiveDisplay(console, with_answer=False) if console is not None else None
        if as_json:
            return Output(display=display, as_json=True)
        return Output(display=display, plain=PlainText(sys.stdout), figures=console)
    console = PlainConsole()
    if show is False:
        return Output(plain=PlainText(sys.stdout), figures=console)
    return Output(display=LiveDisplay(console, with_answer=True), figures=console)


def _print_line(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
