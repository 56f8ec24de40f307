"""Files of JSON lines, compressed or not, read line by line; errors name file, line, field and what to do.

A file that a crash cut in the middle of its last line is read up to there, and that is told, once.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from os import PathLike
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from anabranch.orchestrator.errors import InvalidParameter

T = TypeVar("T", bound=BaseModel)
Told = Callable[[str], None]
"""Takes a sentence about what was found amiss."""

_FIXES = {
    "missing": "add it",
    "json_invalid": "write one whole JSON object a line",
    "model_type": "write one JSON object a line",
    "string_type": "write text, in quotes",
    "string_too_short": "give it at least one character",
    "too_short": "give it at least one character",
    "int_type": "write a whole number",
    "greater_than_equal": "write no negative number",
    "finite_number": "leave it out where it is not a number",
    "float_type": "write a number",
    "float_parsing": "write a number",
}


def lines(path: str | PathLike[str], told: Told) -> Iterator[tuple[int, bytes, bool]]:
    """Each line that is not blank: its number from 1 on, its bytes, and whether it is whole.

    Raises:
        InvalidParameter: the file cannot be read.
    """
    path = Path(path)
    try:
        with _open(path) as file:
            for number, line in enumerate(_forgiving(file, path, told), 1):
                if line.strip():
                    yield number, line, line.endswith(b"\n")
    except OSError as error:
        raise InvalidParameter(
            "recording", f"cannot read {path}: {error.strerror or error}; name a file of JSON lines"
        ) from error


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _forgiving(file: Iterable[bytes], path: Path, told: Told) -> Iterator[bytes]:
    begun = False
    try:
        for line in file:
            begun = True
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        # a file that is no gzip at all is another thing than one that was cut
        if not begun and isinstance(error, gzip.BadGzipFile):
            raise
        told(f"{path} was cut in the middle of its compressed data: what is behind is left out")


def parse(kind: type[T], path: Path, number: int, line: bytes) -> T:
    """The object on a line. Raises InvalidParameter, naming file, line, field and what to do."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    where = f"{path}, line {number}{f', {field}' if field else ''}"
    problem = first["msg"].removeprefix("Value error, ")
    fix = _FIXES.get(
        first["type"], "" if first["type"] == "value_error" else "docs/recordings.md has the format"
    )
    raise InvalidParameter("recording", f"{where}: {problem}{f'; {fix}' if fix else ''}")
