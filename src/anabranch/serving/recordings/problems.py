"""Problems to record: JSON lines with `id`, `problem`, and `answer` where it is known."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Annotated

from pydantic import Field

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.recordings.format import Line, Words
from anabranch.serving.recordings.lines import Told, lines, parse


class Problem(Line):
    """A problem; further keys are kept, and not used."""

    id: Annotated[Words, Field(min_length=1)]
    problem: Annotated[str, Field(min_length=1)]
    answer: Words | None = None


def read_problems(path: str | PathLike[str], told: Told) -> Iterator[Problem]:
    """The problems of a file in its order.

    Raises:
        InvalidParameter: the file cannot be read, a line is no problem, or an id comes twice.
    """
    path, seen = Path(path), dict[str, int]()
    for number, line, _ in lines(path, told):
        problem = parse(Problem, path, number, line)
        if problem.id in seen:
            raise InvalidParameter(
                "problems",
                f"{path}, line {number}, id: {problem.id!r} stands in line {seen[problem.id]}, too; give each its own",
            )
        seen[problem.id] = number
        yield problem
