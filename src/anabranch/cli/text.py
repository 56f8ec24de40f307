"""Text for people: made harmless, cut to a width, figures in few characters."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def harmless(text: str) -> str:
    """Text that a terminal only shows: control characters, escape sequences and direction switches made visible."""
    return _CONTROLS.sub(_visible, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Harmless text on one line, its white space squeezed."""
    return " ".join(harmless(text).split())


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def clip(text: str, width: int) -> str:
    """The text, cut to so many terminal columns; an ellipsis says that something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def wrap(text: str, width: int, lines: int) -> list[str]:
    """The text on at most so many lines of so many columns; the last one is clipped."""
    out: list[str] = []
    while text and len(out) < lines - 1 and cell_len(text) > width:
        piece = set_cell_size(text, width).rstrip()
        space = piece.rfind(" ")
        if space > len(piece) // 2 and not text[len(piece) :].startswith(" "):
            piece = piece[:space]
        out.append(piece.rstrip())
        text = text[len(piece) :].lstrip()
    return [*out, clip(text, width)] if text else out


def seconds(value: float) -> str:
    """A duration: `84 ms`, `4.2 s`, `3 min 05 s`."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 branch`, `1,204 branches`."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "x")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"
