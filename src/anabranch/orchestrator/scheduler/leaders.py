"""Leaders: of calls that begin alike one goes ahead, where all of them would otherwise compute the same prefix.

A prompt is seen as blocks of text, each named by a hash of all text up to its end; so two prompts have exactly the
blocks of their common prefix in common, however forks are nested. A block is new, or being computed by a call under
way, or in the server's cache. A call whose first block that is not in the cache is being computed by another waits
for that one's first piece; then it looks again. Whoever goes ahead computes all of its blocks that are new.

Only calls of one run wait for each other: others may be queued for long, for reasons of their own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Self

from anabranch.orchestrator.branch import Branch

BLOCK = 128
"""Characters of a block: about 32 tokens, from which on SGLang, too, holds a call back for a common prefix
(`IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`)."""
REMEMBERED = 65_536
"""Blocks that are known to be in the server's cache."""


class Turn:
    """A call's turn, as a block: it begins when no other call is computing what this one begins with.

    The call's blocks count as being computed until its first piece, or its end.
    """

    __slots__ = ("_leaders", "_moved", "blocks")

    def __init__(self, leaders: Leaders, blocks: Sequence[int]) -> None:
        self._leaders, self.blocks = leaders, blocks
        self._moved: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        while (ahead := self._leaders.ahead(self.blocks)) is not None:
            await ahead._got_somewhere()
        self.blocks = self._leaders.begin(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """The call has ended; without a piece, another one goes ahead."""
        if self.blocks:
            self._settle(cached=False)

    def computed(self) -> None:
        """A piece is there: the prompt is in the cache. Repeats are ignored."""
        if self.blocks:
            self._settle(cached=True)

    def _settle(self, *, cached: bool) -> None:
        self._leaders.settle(self, cached=cached)
        self.blocks = ()
        if self._moved is not None:
            self._moved.set()

    async def _got_somewhere(self) -> None:
        """Wait until the call has got somewhere, or nowhere."""
        if self._moved is None:
            self._moved = asyncio.Event()
        await self._moved.wait()


class Leaders:
    """Which blocks are in the cache, and which are being computed by whom."""

    def __init__(self) -> None:
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._computing: dict[int, Turn] = {}

    def turn(self, blocks: Sequence[int]) -> Turn:
        """The turn of a call that begins with these blocks."""
        return Turn(self, blocks)

    def begin(self, turn: Turn) -> Sequence[int]:
        """A turn begins: gives those of its blocks that are new, and so are now being computed by it."""
        new = [block for block in turn.blocks if block not in self._cached]
        self._computing.update(dict.fromkeys(new, turn))
        return new

    def settle(self, turn: Turn, *, cached: bool) -> None:
        """A turn's blocks are being computed no more."""
        for block in turn.blocks:
            if self._computing.get(block) is turn:  # not another's, who came after one of these was forgotten
                del self._computing[block]
                if cached:
                    self._cached[block] = None
        while len(self._cached) > REMEMBERED:
            self._cached.popitem(last=False)

    def ahead(self, blocks: Sequence[int]) -> Turn | None:
        """The call that is just computing the first block that is not in the cache."""
        for block in blocks:
            if block not in self._cached:
                return self._computing.get(block)
            self._cached.move_to_end(block)
        return None


def blocks_of(branch: Branch, *, of: str) -> list[int]:
    """The blocks of a branch, the first one first; `of` names whose they are. What is left over at the end is none."""
    said = [piece for message in branch.messages for piece in (message.role, _content(message.content))]
    said += [segment.reasoning + segment.text for segment in branch.segments]
    text, names, name = "\0".join(said), [], hash(of)
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        name = hash((name, text[start : start + BLOCK]))
        names.append(name)
    return names


def _content(content: object) -> str:
    return content if isinstance(content, str) else repr(content)
