"""A colour for each role, the same in the terminal and in the picture."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """A role's colour: `terminal` as rich names it, so that it follows the user's theme; the others as CSS."""

    terminal: str
    light: str
    dark: str


_ROLES = {
    "target": Colour(terminal="blue", light="#2f6fde", dark="#6ea8ff"),
    "draft": Colour(terminal="yellow", light="#d97706", dark="#f5a742"),
    "judge": Colour(terminal="magenta", light="#9b4fd0", dark="#c792ea"),
    "scorer": Colour(terminal="green", light="#1f9254", dark="#5fcf8f"),
    "embedder": Colour(terminal="cyan", light="#0e8fa6", dark="#4cc9e0"),
}
_OTHERS = (
    Colour(terminal="bright_magenta", light="#cf3f7f", dark="#ff85b3"),
    Colour(terminal="bright_green", light="#6b8f1a", dark="#b5d65b"),
    Colour(terminal="bright_cyan", light="#4b5fc4", dark="#9aa9ff"),
    Colour(terminal="bright_yellow", light="#8a6d3b", dark="#d3b887"),
)


def colour(role: str) -> Colour:
    """The colour of a role; one that we do not know always gets the same one of a few."""
    return _ROLES.get(role) or _OTHERS[crc32(role.encode("utf-8", "replace")) % len(_OTHERS)]
