"""Normal forms that cost nothing: of a text, and of a plain number. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\!|\s)+\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d{1,3})?")
_SEPARATOR = re.compile(r"[,{}\\!\s]")
_CURRENCY = re.compile(
    r"\\?\$|[€£¥]|\\(?:text|mathrm)\s*\{\s*(?:dollars?|euros?|cents?)\s*\}|(?<=\d)\s*\b(?:dollars?|euros?)$"
)
_SPACE = re.compile(r"\\[,;:! ]|\\q?quad|~|(?<!\d)\s+|\s+(?!\d)")
_QUANTITY = re.compile(r"([-+\d.,\s]+?)\s*([A-Za-z]{1,3})")
_UNICODE = str.maketrans(
    {
        "²": "^2",
        "³": "^3",
        "½": "1/2",
        "¼": "1/4",
        "¾": "3/4",
        "\u2212": "-",
        "\u00d7": "\\times",
        "·": "\\cdot",
        "π": "\\pi",
        "√": "\\sqrt",
    }
)


def text(answer: str) -> str:
    """An answer without what makes no difference in a word or a sentence: case, white space, punctuation at its ends."""
    return " ".join(answer.split()).strip(" .,;:!?\"'`*()").casefold()


def squeezed(answer: str) -> str:
    """A formula without spaces, dollars and sizes of brackets; case is kept: what differs in it, math-verify decides.

    A space between two digits stays: 2 1/2 is not 21/2.
    """
    for ornament in ("\\left", "\\right", "\\displaystyle", "$"):
        answer = answer.replace(ornament, "")
    answer = _SPACE.sub("", answer.translate(_UNICODE).strip())
    return answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")


def quantity(answer: str) -> tuple[Decimal, str] | None:
    """A plain number with a unit in words behind it; None for anything else."""
    found = _QUANTITY.fullmatch(answer.strip())
    value = number(found[1]) if found else None
    return None if found is None or value is None else (value, found[2].casefold())


def number(answer: str) -> Decimal | None:
    """The value of a plain decimal number, exactly; None for anything else. Thousands may be separated, money may be named."""
    answer = _CURRENCY.sub("", answer.translate(_UNICODE)).strip().strip("$").strip()
    if not _NUMBER.fullmatch(answer) or not any(character.isdigit() for character in answer):
        return None
    return Decimal(_SEPARATOR.sub("", answer))
