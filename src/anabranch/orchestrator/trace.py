"""The trace file: the events of a run, one JSON object a line (`events.schema()` describes a line).

    with TraceWriter("run.jsonl") as trace:
        async for event in stream:
            trace.write(event)

A name that ends in `.gz` is compressed. What was written survives a crash of the program: lines go out as they come,
and `read_trace` forgives a last line that was cut.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Self

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.events import Event, GenerationDelta, from_json, to_json

FLUSH_AFTER_S = 0.5
"""Most seconds of text that a crash may take from a compressed trace; a plain one loses none."""


class TraceWriter:
    """Writes events to a file, which it creates or replaces.

    Raises:
        InvalidParameter: the file cannot be created.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._compressed = self.path.suffix == ".gz"
        self._flushed_at = 0.0
        try:
            self._file = self._open()
        except OSError as error:
            raise InvalidParameter("trace", f"cannot write {self.path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, event: Event) -> None:
        """Add an event. Raises OSError when the disk refuses."""
        self._file.write(to_json(event) + "\n")
        if self._compressed:
            self._flush_now_and_then(event)

    def close(self) -> None:
        """Finish the file. Idempotent."""
        self._file.close()

    def _open(self) -> IO[str]:
        # errors: half a surrogate pair, which a model may write, must not end the trace
        if self._compressed:
            return gzip.open(self.path, "wt", encoding="utf-8", errors="replace", newline="\n")
        return open(self.path, "w", buffering=1, encoding="utf-8", errors="replace", newline="\n")

    def _flush_now_and_then(self, event: Event) -> None:
        # a flush costs compression, so deltas wait for one another
        if not isinstance(event, GenerationDelta) or event.t - self._flushed_at >= FLUSH_AFTER_S:
            self._file.flush()
            self._flushed_at = event.t


def read_trace(path: str | PathLike[str]) -> list[Event]:
    """The events in a trace file, in their order.

    Raises:
        InvalidParameter: the file cannot be read, holds no event, or has a line that is none (its number is named).
    """
    path = Path(path)
    events: list[Event] = []
    try:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                event = _event(path, number, line)
                if event is not None:
                    events.append(event)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            "trace", f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not events:
        raise InvalidParameter("trace", f"{path} holds no events")
    return events


def _event(path: Path, number: int, line: str) -> Event | None:
    try:
        return from_json(line)
    except InvalidParameter as error:
        if not line.endswith("\n"):
            return None  # the writer died in the middle of its last line
        problem = str(error).removeprefix("trace: ")
        raise InvalidParameter("trace", f"{path}, line {number}: {problem}") from error


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; those of a compressed one that was cut, up to the cut."""
    if path.suffix != ".gz":
        with open(path, encoding="utf-8", newline="\n") as file:
            yield from file
        return
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        try:
            yield from file
        except (EOFError, zlib.error):
            return
