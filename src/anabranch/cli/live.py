"""The live display: the chart of the run, redrawn a few times a second, and the answer being written below it.

It draws at a steady pace, however many events arrive in between. It never draws from another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from anabranch.cli.chart import chart, headline
from anabranch.cli.text import harmless
from anabranch.cli.timeline import Timeline
from anabranch.cli.tree import TreeRow, tree_rows

if TYPE_CHECKING:
    from anabranch.orchestrator.events import Event

REFRESH_S = 0.1
"""Seconds between two drawings."""
MOST_ROWS_AT_END = 60
"""Rows of the chart that stays when the run is over."""
_TAIL = 6_000
"""Characters from the end of the answer that are looked at: more than a screen holds."""


class LiveDisplay:
    """Shows a run on a terminal while it goes on.

    Args:
        with_answer: show the answer's end below the chart.
    """

    def __init__(self, console: Console, *, with_answer: bool) -> None:
        self.timeline = Timeline()
        self._console, self._with_answer = console, with_answer
        self._live: Live | None = None
        self._ahead: float | None = None
        self._rows: list[TreeRow] = []

    def feed(self, event: Event) -> None:
        """Take in an event; the next drawing shows it."""
        self.timeline.feed(event)
        self._ahead = monotonic() - event.t

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """Draw until the block is left; the chart then stays on the screen, without the answer."""
        ticking = asyncio.get_running_loop().create_task(self._tick(), name="anabranch-display")
        try:
            yield
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            self._end()

    async def _tick(self) -> None:
        while True:
            # the first drawing waits for a branch: before it, a backend may tell of its start itself
            if self.timeline.branches and self._console.is_terminal:
                self._draw()
            await asyncio.sleep(REFRESH_S)

    def _draw(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                vertical_overflow="crop",
                redirect_stdout=not self._console.stderr,
            )
            self._live.start()
        if self._ahead is not None and not self.timeline.finished:
            self.timeline.now = max(self.timeline.now, monotonic() - self._ahead)
        self._live.update(self.frame(), refresh=True)

    def _end(self) -> None:
        final = self._final()
        if self._live is not None:
            self._live.update(final, refresh=True)
            self._live.stop()
        elif self.timeline.branches:
            self._console.print(final)

    def frame(self) -> RenderableType:
        """What is to be seen now; no higher than the screen."""
        width, height = self._console.width, self._console.height
        room = height - 3
        answer = self._answer_lines(width, max(3, room // 3)) if self._with_answer else []
        drawn = chart(self.timeline, width=width, height=max(3, room - len(answer)), rows=self._tree())
        return Group(headline(self.timeline, width), drawn, Text(), *answer)

    def _final(self) -> RenderableType:
        drawn = chart(self.timeline, width=self._console.width, height=MOST_ROWS_AT_END, rows=self._tree())
        return Group(headline(self.timeline, self._console.width), drawn, Text())

    def _tree(self) -> list[TreeRow]:
        # where a branch stands does not change, so the tree is made anew only when there are more
        if len(self._rows) != len(self.timeline.branches):
            self._rows = tree_rows(self.timeline.branches)
        return self._rows

    def _answer_lines(self, width: int, most: int) -> list[Text]:
        """The last lines of the answer; of its reasoning while there is no answer."""
        written, style = _tail([text for _, text in self.timeline.answer]), ""
        if not written:
            written, style = _tail(self.timeline.reasoning), "dim italic"
        text = Text(harmless(written), style=style)
        return list(text.wrap(self._console, width, tab_size=4))[-most:] if written else []


def _tail(pieces: list[str]) -> str:
    """The end of a text in pieces."""
    kept: list[str] = []
    length = 0
    for piece in reversed(pieces):
        kept.append(piece)
        length += len(piece)
        if length > _TAIL:
            break
    return "".join(reversed(kept))
