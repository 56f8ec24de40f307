"""Writes a recording, line by line: what was written survives a crash of the program.

Invariant: what a `Writer` adds to is at all times a whole recording, but for the line that is just being written. In a
compressed file each such line is a gzip member of its own, so that nothing is ever half compressed.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Self

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.recordings.format import FORMAT, VERSION, Header, Line, Trace
from anabranch.serving.recordings.lines import lines

_HEADER = Header(format=FORMAT, version=VERSION)


class Writer:
    """Adds traces to a file, which it creates where there is none; a last line that was cut is taken away first.

    Raises:
        InvalidParameter: the file cannot be written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            _mend(self.path)
            self._file = open(self.path, "ab")  # noqa: SIM115 - closed by `close`
            if not self._file.tell():
                self._add(_HEADER)
        except OSError as error:
            raise _cannot(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, trace: Trace) -> None:
        """Add a trace; it is in the file when this returns. Raises OSError when the disk refuses."""
        self._add(trace)

    def close(self) -> None:
        """Finish the file. Idempotent."""
        self._file.close()

    def _add(self, line: Line) -> None:
        self._file.write(_packed(self.path, encoded(line)))
        self._file.flush()


def write(path: str | PathLike[str], traces: Iterable[Trace]) -> None:
    """Write a recording anew, in place of a file that was there; compressed as a whole, which takes less room.

    Raises:
        InvalidParameter: the file cannot be written.
    """
    path = Path(path)
    try:
        with gzip.open(path, "wb") if path.suffix == ".gz" else open(path, "wb") as file:
            file.write(encoded(_HEADER))
            for trace in traces:
                file.write(encoded(trace))
    except OSError as error:
        raise _cannot(path, error) from error


def encoded(line: Line) -> bytes:
    """A line as it stands in the file."""
    # errors: half a surrogate pair, which a model may write, must not end the recording
    text = json.dumps(line.to_line(), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _cannot(path: Path, error: OSError) -> InvalidParameter:
    return InvalidParameter(
        "recording", f"cannot write {path}: {error.strerror}; name a file that can be written"
    )


def _packed(path: Path, data: bytes) -> bytes:
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _mend(path: Path) -> None:
    """Take away what a crash left half written."""
    if not path.exists():
        return
    cut: list[str] = []
    kept = list(lines(path, cut.append))
    if not cut and all(whole for *_, whole in kept):
        return
    beside = path.with_name(f".{path.name}.mended{path.suffix}")
    beside.write_bytes(b"".join(_packed(path, mended) for _, line, _ in kept if (mended := _whole(line))))
    os.replace(beside, path)


def _whole(line: bytes) -> bytes:
    """The line with its end; empty where it is no JSON."""
    try:
        json.loads(line)
    except ValueError:
        return line if line.endswith(b"\n") else b""
    return line.rstrip(b"\n") + b"\n"
