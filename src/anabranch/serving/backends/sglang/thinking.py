"""Reasoning apart from the answer: text in, (reasoning, answer) out. Pure.

Models that think write `<think>…</think>` (or another pair of tags) before their answer; some chat templates open the
tag already. It only sorts text: token ids, tags among them, are kept elsewhere.

Invariant: reasoning and answer together hold all that was fed, but for the tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """What opens and closes reasoning."""

    start: str = "<think>"
    end: str = "</think>"

    def open_after(self, text: str, *, before: bool) -> bool:
        """Whether reasoning is open after this text, when it was or was not `before`."""
        opened, closed = text.rfind(self.start), text.rfind(self.end)
        return before if opened == closed == -1 else opened > closed


_TAGS = {
    "kimi": Tags(start="◁think▷", end="◁/think▷"),
    "mistral": Tags(start="[THINK]", end="[/THINK]"),
    "minimax-m3": Tags(start="<mm:think>", end="</mm:think>"),
    "apertus2509": Tags(start="<|inner_prefix|>", end="<|inner_suffix|>"),
    "cohere_command4": Tags(start="<|START_THINKING|>", end="<|END_THINKING|>"),
}
"""SGLang's reasoning parsers whose tags are not `<think>` (srt/parser/reasoning_parser.py, 0.5.23)."""


def tags_of(parser: str | None) -> Tags:
    """The tags that belong to a server's reasoning parser; `<think>` where it has none."""
    return _TAGS.get(parser or "", Tags())


class _At(Enum):
    START = auto()
    REASONING = auto()
    ANSWER = auto()


class Splitter:
    """Sorts one turn's text as it arrives.

    Args:
        opened: the turn stands inside its reasoning already.
        begun: the turn has begun already; only a new one may open with the tag.
    """

    __slots__ = ("_at", "_tags")

    def __init__(self, tags: Tags, *, opened: bool = False, begun: bool = False) -> None:
        self._tags = tags
        self._at = _At.REASONING if opened else _At.ANSWER if begun else _At.START

    @property
    def awaits(self) -> tuple[str, ...]:
        """Tags that may come: a piece must not end within one of them (see `overlap`)."""
        return () if self._at is _At.ANSWER else (self._tags.start, self._tags.end)

    def feed(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer in the next piece."""
        blanks = ""
        if self._at is _At.START and text.strip():
            stripped = text.lstrip()
            if stripped.startswith(self._tags.start):
                blanks = text[: len(text) - len(stripped)]
                self._at, text = _At.REASONING, stripped[len(self._tags.start) :]
            else:
                self._at = _At.ANSWER
        if self._at is not _At.REASONING:
            return "", text
        reasoning, closed, answer = text.partition(self._tags.end)
        if closed:
            self._at = _At.ANSWER
        return reasoning, blanks + answer


def overlap(text: str, expected: Iterable[str]) -> int:
    """How many characters at the end of the text may begin one of the expected strings, without being all of it."""
    return max((_begun(text, string) for string in expected), default=0)


def _begun(text: str, string: str) -> int:
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
