"""Outlines: what a model wrote as a list of points, read into `Point`s, and the JSON schema that makes it write one.

Pure functions of text. Reading is tolerant, because models number in many ways, wrap lines, nest lists, and talk
before and after; the sources' own readers take `1. …` lines only. Nothing here decides what to do with the points.

Invariant: points are numbered from 1 on without gaps, and no two have the same title.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from anabranch.strategies.lists import list_items

Difficulty = Literal["easy", "hard"]

FEWEST_POINTS = 3
"""What a constrained outline must have at least (Skeleton-of-Thought asks for 3 to 10 points)."""
_WORD = r'[^ ,;:"\\\x00-\x1F]'
_TITLE = rf"^{_WORD}{{2,28}}( {_WORD}{{1,28}}){{0,5}}$"
"""At most six words, and nothing that would make it a sentence (3 to 5 words are asked for). By words rather than by
`maxLength`, which cuts the last one in two. No quotes or backslashes: neither grammar compiler escapes in patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of an outline.

    Attributes:
        number: its place, from 1 on.
        title: a few words.
        detail: what the outline said of it beyond the title (nested points, as a rule).
        needs: numbers of the points whose texts it builds on.
        difficulty: how hard the model takes it to be, where that was asked for.
    """

    number: int
    title: str
    detail: str = ""
    needs: tuple[int, ...] = ()
    difficulty: Difficulty | None = None

    def __str__(self) -> str:
        return f"{self.number}. {self.title}" + (f" ({self.detail})" if self.detail else "")


def outline_schema(max_points: int, *, dependencies: bool = False, difficulty: bool = False) -> str:
    """JSON schema of an outline: an object whose `points` are titles, or objects where more than a title is asked for.

    It keeps to keywords that the grammar compilers of SGLang (xgrammar) and of llama.cpp both enforce.
    """
    title = {"type": "string", "pattern": _TITLE}
    fields: dict[str, Any] = {"title": title}
    if dependencies:
        number = {"type": "integer", "minimum": 1, "maximum": max_points}
        fields["needs"] = {"type": "array", "items": number, "maxItems": 3}
    if difficulty:
        fields["difficulty"] = {"type": "string", "enum": ["easy", "hard"]}
    points = {
        "type": "array",
        "items": _object(fields) if len(fields) > 1 else title,
        "minItems": min(FEWEST_POINTS, max_points),
        "maxItems": max_points,
    }
    return json.dumps(_object({"points": points}))


def read_outline(text: str, max_points: int) -> list[Point]:
    """The points in a model's text, be it JSON or a list."""
    return parse_json_outline(text, max_points) or parse_outline(text, max_points)


def parse_json_outline(text: str, max_points: int) -> list[Point]:
    """The points of an outline in JSON. One that was cut off gives those that are complete."""
    return _numbered(_from_json(_without_thoughts(text)), max_points)


def parse_outline(text: str, max_points: int) -> list[Point]:
    """The points of an outline written as a list, in any of the ways of `lists`; empty when there is no list."""
    items = list_items(_without_thoughts(text))
    return _numbered((_Raw(item.number, item.text, item.nested) for item in items), max_points)


def drop_bad_needs(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """The points with only such needs as can be met (those of earlier points), and what was dropped, in words."""
    problems: list[str] = []
    sound: list[Point] = []
    for point in points:
        good = tuple(need for need in dict.fromkeys(point.needs) if 1 <= need < point.number)
        bad = [str(need) for need in dict.fromkeys(point.needs) if need not in good]
        if bad:
            problems.append(f"point {point.number} cannot need point {', '.join(bad)}: only earlier ones count")
        sound.append(replace(point, needs=good))
    return sound, problems


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


class _Raw(NamedTuple):
    """A point as it was found: with the number that the text gave it, and its lines."""

    number: int
    title: str
    details: tuple[str, ...] = ()
    needs: tuple[int, ...] = ()
    difficulty: Difficulty | None = None


def _numbered(raws: Iterable[_Raw], max_points: int) -> list[Point]:
    """Duplicates out (the first one stays), numbers without gaps, needs renumbered alike."""
    renumbered: dict[int, int] = {}
    by_title: dict[str, Point] = {}
    for raw in raws:
        title, detail = _title_and_detail(raw)
        if not title or raw.number in renumbered:
            continue
        known = by_title.get(title.casefold())
        if known is None and len(by_title) < max_points:
            known = Point(
                number=len(by_title) + 1,
                title=title,
                detail=detail,
                needs=raw.needs,
                difficulty=raw.difficulty,
            )
            by_title[title.casefold()] = known
        if known is not None:
            renumbered[raw.number] = known.number
    return [
        replace(point, needs=tuple(renumbered.get(need, need) for need in point.needs))
        for point in by_title.values()
    ]


_BOLD_TITLE = re.compile(r"(?:\*\*|__)(?P<title>.+?)(?:\*\*|__)\s*[-:.,\u2013\u2014\uff1a]*\s*(?P<rest>.*)")
_MARKUP = re.compile(r"\*\*|__|`|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)")
_EDGES = " \t\"'.:;,-\u2013\u2014\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u3000\u3001\u3002\uff0c\uff1a\uff1b"
"""Spaces, quotation marks, dashes, and marks that end a clause, of the Latin and the Chinese script."""


def _title_and_detail(raw: _Raw) -> tuple[str, str]:
    """A bold beginning is the title, what follows it is detail; else all of it is the title."""
    title, details = raw.title, list(raw.details)
    if (bold := _BOLD_TITLE.fullmatch(title)) and _clean(bold["title"]):
        title = bold["title"]
        details.insert(0, bold["rest"])
    return _clean(title), "; ".join(cleaned for detail in details if (cleaned := _clean(detail)))


def _clean(text: str) -> str:
    text = " ".join(_MARKUP.sub("", text).split()).strip(_EDGES)
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return text.strip(_EDGES)


def _without_thoughts(text: str) -> str:
    """The text after a reasoning block; a block that was never closed leaves nothing of itself."""
    return re.sub(r"<think>.*", "", re.sub(r"^.*</think>", "", text, flags=re.DOTALL), flags=re.DOTALL)


def _from_json(text: str) -> Iterator[_Raw]:
    for number, item in enumerate(_items(text), start=1):
        if isinstance(item, str):
            yield _Raw(number, item)
        elif isinstance(item, dict):
            title = item.get("title") or next((v for v in item.values() if isinstance(v, str)), "")
            needs = item.get("needs")
            yield _Raw(
                number,
                str(title),
                needs=tuple(n for n in needs if type(n) is int) if isinstance(needs, list) else (),
                difficulty=_difficulty(item.get("difficulty")),
            )


def _difficulty(value: object) -> Difficulty | None:
    return value if value in ("easy", "hard") else None


def _items(text: str) -> Iterator[Any]:
    """The complete items of the first JSON array in the text."""
    decoder = json.JSONDecoder(strict=False)
    place = text.find("[") + 1
    while place:
        place = re.compile(r"[\s,]*").match(text, place).end()  # type: ignore[union-attr]
        try:
            item, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:
            return
        yield item
