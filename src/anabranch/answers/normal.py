"""Normal forms that cost nothing: of a text, and of a plain number. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:(?:,|\{,\}|\\,|\\!|\s)+\d{3})+)?(?:\.\d*)?")
_SEPARATOR = re.compile(r"[,{}\\!\s]")
_SPACE = re.compile(r"\\[,;:! ]|\\q?quad|~|\s")


def text(answer: str) -> str:
    """An answer without what makes no difference in a word or a sentence: case, white space, punctuation at its ends."""
    return " ".join(answer.split()).strip(" .,;:!?\"'`*()").casefold()


def squeezed(answer: str) -> str:
    """A formula without spaces, dollars and sizes of brackets; case is kept: what differs in it, math-verify decides."""
    for ornament in ("\\left", "\\right", "\\displaystyle", "$"):
        answer = answer.replace(ornament, "")
    return _SPACE.sub("", answer).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")


def number(answer: str) -> Decimal | None:
    """The value of a plain decimal number, exactly; None for anything else. Thousands may be separated."""
    answer = answer.strip().strip("$").replace("\\$", "").strip()
    if not _NUMBER.fullmatch(answer) or not any(character.isdigit() for character in answer):
        return None
    return Decimal(_SEPARATOR.sub("", answer))
