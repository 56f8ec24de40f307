r"""Lists as models write them: finds the items of the outermost list in a text.

Takes `1.`, `1)`, `(1)`, full-width and circled digits, Chinese numerals and ordinals, bullets and headings, bold or
not. A line that wraps belongs to its item; a nested list, and a dotted number (`1.2`), to its parent; what is said
before and after is left out.
Pure functions of text; what an item means is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["number", "bullet", "heading", "dotted"]


class Item(NamedTuple):
    """An item of a list: the number that the text gave it (or its place), its text, and what is nested in it."""

    number: int
    text: str
    nested: tuple[str, ...] = ()


def list_items(text: str) -> Iterator[Item]:
    """The items of the outermost list. Numbers win over bullets, bullets over headings; no list, no items."""
    lines = _lines(text)
    kinds: tuple[Kind, ...] = ("number", "bullet", "heading")
    kind = next((kind for kind in kinds if any(line.kind == kind for line in lines)), None)
    if kind is None:
        return
    outermost = min(line.indent for line in lines if line.kind == kind)
    current: Item | None = None
    for line in lines:
        if line.kind == kind and line.indent < outermost + 2:
            if current:
                yield current
            current = Item(line.number or (current.number if current else 0) + 1, line.text)
        elif current:
            current = _with_line(current, line)
    if current:
        yield current


class _Line(NamedTuple):
    indent: int
    text: str
    kind: Kind | None
    number: int = 0
    after_blank: bool = False


_DIGITS = "一二三四五六七八九"
_CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
_TO_ASCII = str.maketrans(
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19\uff0e\uff1a\uff08\uff09\uff0c\u3010\u3011",
    "0123456789.:(),[]",
)
"""Full-width digits and marks, one to one, so that positions stay."""

_BEFORE = r"(?:>\s?)*(?:\#{1,6}\s+)?(?P<bold>\*\*|__)?"
_NUMBER = re.compile(
    _BEFORE
    + r"""(?:
        (?:(?:point|step|item|part)\s*)?(?P<digits>\d{1,2})\s*(?:[)\u3001]|[.:](?!\d))
      | [(\[]\s*(?P<enclosed>\d{1,2})\s*[)\]]
      | \(?(?P<chinese>[一二三四五六七八九十]{1,3})[)\u3001.,:]
      | 第\s*(?P<ordinal>[一二三四五六七八九十]{1,3}|\d{1,2})[点步条个项部分]*[\u3001.,:\s]?
      | (?P<circled>[①-⑳])
    )\s*(?P<text>.*)""",
    re.VERBOSE | re.IGNORECASE,
)
_DOTTED = re.compile(_BEFORE + r"\d{1,2}(?:\.\d{1,2})+[.)]?\s+(?P<text>.*)")
_BULLET = re.compile(_BEFORE + r"[-*+\u2022\u00b7\u2023\u25aa\u25e6\u25cf\u25cb\u2013\u2014]\s+(?P<text>.*)")
_HEADING = re.compile(r"#{1,6}\s+(?P<text>.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_SENTENCE_END = (".", "!", "?", ":", "\u3002", "\uff01", "\uff1f", "\uff1a")


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    blank = False
    for raw in _one_item_a_line(text).expandtabs(4).splitlines():
        stripped = raw.strip()
        if stripped and not _FENCE.match(raw):
            lines.append(_line(len(raw) - len(raw.lstrip()), stripped)._replace(after_blank=blank))
        blank = not stripped
    return lines


def _one_item_a_line(text: str) -> str:
    """A list written as one line (`1. A 2. B 3. C`) is broken before each number that comes next."""
    number = 2
    while found := re.search(rf"(?<=\S)[ \t]+(?={number}[.)][ \t]+\S)", text):
        if re.search(rf"^\W*{number}[.)]", text, re.MULTILINE):
            break
        text = f"{text[: found.start()]}\n{text[found.end() :]}"
        number += 1
    return text


def _line(indent: int, text: str) -> _Line:
    ascii_text = text.translate(_TO_ASCII)
    if match := _NUMBER.fullmatch(ascii_text):
        return _Line(indent, _rest(match, text), "number", _value(match))
    if match := _DOTTED.fullmatch(ascii_text):
        return _Line(indent, _rest(match, text), "dotted")
    if match := _BULLET.fullmatch(ascii_text):
        return _Line(indent, _rest(match, text), "bullet")
    if match := _HEADING.fullmatch(text):
        return _Line(indent, match["text"], "heading")
    return _Line(indent, text, None)


def _rest(match: re.Match[str], text: str) -> str:
    """The text after the marker, with the bold mark that stood before it."""
    return (match["bold"] or "") + text[match.start("text") :]


def _value(match: re.Match[str]) -> int:
    if match["circled"]:
        return _CIRCLED.index(match["circled"]) + 1
    written = match["digits"] or match["enclosed"] or match["chinese"] or match["ordinal"]
    return int(written) if written.isdecimal() else _chinese_value(written)


def _chinese_value(numeral: str) -> int:
    """Up to 99: 三 = 3, 十 = 10, 十二 = 12, 二十 = 20, 二十三 = 23."""
    tens, ten, ones = numeral.rpartition("十")
    value = sum(_DIGITS.index(one) + 1 for one in ones)
    return value + (10 * (_DIGITS.index(tens) + 1 if tens in _DIGITS and tens else 1) if ten else 0)


def _with_line(item: Item, line: _Line) -> Item:
    """The item with a line that follows it: something nested, the rest of a wrapped line, or a remark to leave out."""
    if line.kind in ("number", "bullet", "dotted"):
        return item._replace(nested=(*item.nested, line.text))
    *others, last = [item.text, *item.nested]
    if line.kind is None and _continues(last, line):
        text, *nested = *others, f"{last} {line.text}"
        return item._replace(text=text, nested=tuple(nested))
    return item


def _continues(before: str, line: _Line) -> bool:
    """Whether a line without a marker is the rest of what stands before it, and no remark of its own."""
    if line.indent and not line.after_blank:
        return True
    if line.after_blank or before.endswith(_SENTENCE_END):
        return False
    return line.text[0].islower() or not line.text.endswith(_SENTENCE_END)
