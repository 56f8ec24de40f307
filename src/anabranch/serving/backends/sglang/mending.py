"""Characters that were cut in two: a reply that was capped within one, and the next reply that completes it.

Tokens may hold parts of a character. The server leaves such a character out of the text when its first part was in
the prompt; so the text of such a reply's beginning is asked of the tokenizer instead. Nothing is asked otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from anabranch.serving.backends.sglang.reply import HALF, Piece
from anabranch.serving.backends.sglang.tokenizer import RemoteTokenizer

_LEAD = 4
"""Tokens that can hold the first part of one character (three, a byte each), and one for good measure."""
_KEPT = 4096


class Halves:
    """Remembers the last ids of replies that ended within a character."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def remember(self, ids: Sequence[int]) -> None:
        """Prompt and reply together ended within a character."""
        self._kept[tuple(ids[-_LEAD:])] = None
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def lead(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """The last ids of a prompt that ends within a character; else nothing."""
        lead = tuple(prompt[-_LEAD:])
        return lead if lead in self._kept else ()


class Mender:
    """Gives a reply's text, that of its first character included.

    Args:
        lead: the last ids of the prompt, where it ends within a character.
        special: special tokens are part of the text.
    """

    def __init__(self, tokenizer: RemoteTokenizer, lead: tuple[int, ...], *, special: bool) -> None:
        self._tokenizer, self._lead, self._special = tokenizer, lead, special
        self._skip: int | None = None if lead else 0
        self._pending: tuple[int, ...] | None = () if lead else None

    async def text(self, ids: Sequence[int]) -> str:
        """The text of a reply's ids."""
        if self._skip is None:
            self._skip = len((await self._decode(self._lead)).rstrip(HALF))
        return (await self._decode((*self._lead, *ids)))[self._skip :]

    async def mend(self, piece: Piece) -> Piece:
        """The piece as it should be: empty as long as the first character is not complete, then with it."""
        if self._pending is None:
            return piece
        self._pending += piece.ids
        text = await self.text(self._pending)
        # The server's text lags: from where it says something on, it goes on without a gap.
        if piece.finish is None and (not piece.text or text.endswith(HALF)):
            return replace(piece, text="")
        self._pending = None
        return replace(piece, text=text)

    async def _decode(self, ids: Sequence[int]) -> str:
        return await self._tokenizer.decode(ids, special=self._special)
