"""The trace that `anabranch ask` writes: a full disk costs the trace, never the run."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anabranch.cli.errors import tell

if TYPE_CHECKING:
    from anabranch.orchestrator.events import Event
    from anabranch.orchestrator.trace import TraceWriter


class TraceFile:
    """Writes events until that fails; then says so, once. Raises InvalidParameter when it cannot even begin."""

    def __init__(self, path: Path) -> None:
        from anabranch.orchestrator.trace import TraceWriter

        self._writer: TraceWriter | None = TraceWriter(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as problem:
                self._give_up(problem)

    def feed(self, event: Event) -> None:
        """Write an event."""
        if self._writer is not None:
            try:
                self._writer.write(event)
            except OSError as problem:
                self._give_up(problem)

    def _give_up(self, problem: OSError) -> None:
        assert self._writer is not None
        tell(f"the trace {self._writer.path} is incomplete: {problem.strerror}", "warning")
        self._writer = None
