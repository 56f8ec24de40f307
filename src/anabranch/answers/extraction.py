r"""The final answer of a text. Pure and total: any text has an answer or None.

What counts is behind the reasoning (`</think>`): the last `\boxed{…}`, with those before it in the same sentence; else
what the last marker announces (`#### 42`, "the answer is 42"); else, for mathematics, the last formula or number. A box that
is cut in the middle is no answer, and no earlier one stands in for it.
"""

from __future__ import annotations

import re
from typing import Literal

Form = Literal["math", "text", "choice"]
"""What is looked for: a mathematical expression, a word or a sentence, the letter of a choice."""

LONGEST = 2_000
"""Characters of an answer; what is longer is none."""
MOST_BOXES = 32
"""Boxes of one sentence that are taken together."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\w])")
_MARKER = re.compile(
    r"(?:^|\n)\s*####\s*|\b(?:final\s+)?answer\b(?:\s+(?:to|for)\s+[^.:\n]{0,200}?)?\W{0,4}(?:\bis\b|:|=)\s*:?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\$?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?%?(?!\w)|(?<![\w.])[-+]?\.\d+")
_FORMULA = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|(?<!\\)\$(?=[^$]*[\\^_=(){}]|\s*[-\d.,/]+\s*\$)([^$]+?)(?<!\\)\$",
    re.DOTALL,
)
_BETWEEN_BOXES = re.compile(r"(?:[^.\n]|\.(?=\d)){0,40}")
_SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?=\s+[A-Z]|\s*$)|\n")
_LETTER = re.compile(r"\(([A-J])\)|(?<![A-Za-z])([A-J])(?![A-Za-z'])")
_ALONE = re.compile(r"\W*([A-Ja-j])\W*(?:$|(?<=[).:])\s)")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


def extract(text: str, form: Form = "math") -> str | None:
    """The final answer of a text, as it is written there; a choice is its capital letter.

    >>> extract(r"So it is \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    >>> extract("It was 3 at first. The answer is 1,260 dollars.", "math")
    '1,260 dollars'
    >>> extract("I take (B), since the others are too small.", "choice")
    'B'
    """
    said = without_reasoning(text)
    if said is None:
        return None
    boxed = bool(_BOX.search(said))
    found = _boxed(said) if boxed else _announced(said)
    match form:
        case "choice":
            return _choice(said if found is None else found, announced=found is not None)
        case "text":
            return _clean(said if found is None and not boxed else found)
        case "math":
            return _clean(found if boxed else _mathematical(said, found))


def without_reasoning(text: str) -> str | None:
    """What stands behind the reasoning; None where the reasoning has no end."""
    _, closed, behind = text.rpartition("</think>")
    return None if not closed and "<think>" in text else behind


def _boxed(text: str) -> str | None:
    """What the last box holds, and those before it in its sentence; None when the last has no end."""
    boxes = list(_BOX.finditer(text))
    held: list[str] = []
    behind: int | None = None  # where the box behind begins
    for box in reversed(boxes):
        end = _box_end(text, box.end())
        if end is None or (
            behind is not None and end <= behind and not _BETWEEN_BOXES.fullmatch(text[end:behind])
        ):
            break
        if behind is None or end <= behind:  # not around the one behind
            held.append(text[box.end() : end].removeprefix("{").removesuffix("}"))
        behind = box.start()
        if len(held) == MOST_BOXES:
            break
    return ", ".join(reversed(held)) or None


def _box_end(text: str, start: int) -> int | None:
    """The place behind a box; TeX takes one character where there is no brace."""
    if text[start] != "{":
        return start + 1
    depth, place = 0, start
    while place < len(text):
        character = text[place]
        place += 2 if character == "\\" else 1
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return place
    return None


def _mathematical(text: str, announced: str | None) -> str | None:
    """What was announced, or the one formula in it; else the last formula or number of the text."""
    formulas = list(_FORMULA.finditer(text if announced is None else announced))
    if announced is not None:
        return _within(formulas[0]) if len(formulas) == 1 else announced
    behind = formulas[-1].end() if formulas else 0
    numbers = _NUMBER.findall(text[behind:])
    return numbers[-1] if numbers else _within(formulas[-1]) if formulas else None


def _within(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None)


def _announced(text: str) -> str | None:
    """What stands behind the last marker, to the end of its sentence; None where there is none, or nothing behind it."""
    for match in reversed(list(_MARKER.finditer(text))):
        rest = text[match.end() :].lstrip(" \t\n*:")
        if found := _SENTENCE_END.split(rest, maxsplit=1)[0].strip():
            return found
    return None


def _choice(text: str, *, announced: bool) -> str | None:
    """A letter; from free text only one in parentheses, or one that stands there alone."""
    text = _TEXT_COMMAND.sub(r"\1", text).strip()
    if alone := _ALONE.match(text):
        return alone[1].upper()
    found = [match for match in _LETTER.finditer(text) if announced or match[1]]
    if not found:
        return None
    chosen = found[0] if announced else found[-1]
    return chosen[1] or chosen[2]


def _clean(answer: str | None) -> str | None:
    """Without what only frames it: dollars, stars, a full stop at the end."""
    if answer is None or len(answer) > LONGEST:
        return None
    answer = answer.strip().strip("*`").strip()
    while len(answer) > 1 and answer[0] == answer[-1] == "$":
        answer = answer[1:-1].strip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if answer.startswith(opening) and answer.endswith(closing) and answer.count(opening) == 1:
            answer = answer[2:-2].strip()
    return answer.rstrip(".").strip() or None
