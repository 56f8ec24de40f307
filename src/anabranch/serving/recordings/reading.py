"""Reads a recording, trace by trace."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.recordings.format import FORMAT, VERSION, Header, Trace
from anabranch.serving.recordings.lines import Told, lines, parse


class IncompleteRecording(UserWarning):
    """The last line of a recording is not whole: whoever wrote it was interrupted."""


def read(path: str | PathLike[str], *, told: Told | None = None) -> Iterator[Trace]:
    """The traces of a recording in the file's order, one in memory at a time.

    Args:
        path: JSON lines; a name that ends in `.gz` is compressed.
        told: is told of a last line that was cut, which is left out; left out, an `IncompleteRecording` is warned of.

    Raises:
        InvalidParameter: the file cannot be read, or a line is no trace: names file, line, field, and what to do.
    """
    path, told = Path(path), told or _warn
    for number, line, whole in lines(path, told):
        if not whole and not _is_json(line):
            told(f"{path}, line {number}, the last, was cut in the middle: it is left out")
        elif not (number == 1 and _is_header(path, line)):
            yield parse(Trace, path, number, line)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_header(path: Path, line: bytes) -> bool:
    """Whether the first line is a header. Raises InvalidParameter where it is one of another format."""
    if b'"format"' not in line or not _is_json(line):
        return False
    found = json.loads(line)
    if not isinstance(found, dict) or "format" not in found or "text" in found:
        return False
    header = parse(Header, path, 1, line)
    if header.format != FORMAT or header.version > VERSION:
        raise InvalidParameter(
            "recording",
            f"{path}, line 1, format: is {header.format} {header.version}, and this reads {FORMAT} up to {VERSION}; "
            "convert the file, or update anabranch",
        )
    return True


def _warn(message: str) -> None:
    warnings.warn(message, IncompleteRecording, stacklevel=4)
