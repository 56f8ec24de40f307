"""What a `replay:` URL says: which recording, and how it is played."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from anabranch.orchestrator.errors import InvalidParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to play a recording.

    Attributes:
        timed: wait between the pieces as it was recorded.
        speed: how many times faster than it was recorded.
        again: start anew when all traces of a problem were given out.
    """

    file: Path
    timed: bool = False
    speed: float = 1.0
    again: bool = False


def parse(url: str) -> Settings:
    """The settings in a `replay:` URL. Raises InvalidParameter: no file, an unknown option, or a bad value."""
    place, _, query = url.partition(":")[2].partition("?")
    if not place:
        raise InvalidParameter("backend", "replay: needs a recording; write replay:FILE.jsonl")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _READ.keys()):
        raise InvalidParameter(f"backend: {unknown[0]}", f"no such option; `replay:` has {', '.join(_READ)}")
    values = {_FIELDS.get(name, name): _READ[name](text) for name, text in options.items()}
    return Settings(file=Path(place).expanduser(), **values)


def _timing(text: str) -> bool:
    if text not in ("recorded", "none"):
        raise InvalidParameter("backend: timing", f"is recorded or none, got {text!r}")
    return text == "recorded"


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < math.inf:
        raise InvalidParameter("backend: speed", f"needs a number above 0, got {text!r}")
    return speed


def _again(text: str) -> bool:
    if text not in ("0", "1"):
        raise InvalidParameter("backend: again", f"is 0 or 1, got {text!r}")
    return text == "1"


_READ: dict[str, Callable[[str], Any]] = {"timing": _timing, "speed": _speed, "again": _again}
_FIELDS = {"timing": "timed"}
