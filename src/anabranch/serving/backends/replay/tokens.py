"""A trace as tokens: what a cap counts, what a stop string is looked for in, where a branch goes on. Pure.

A recording is its own vocabulary: a token's id is its place among all tokens of the file. So a branch that was cut
anywhere names the trace that it came from, and goes on with it, also where another trace begins with the same words.

Invariant: the tokens of a trace, joined, are its text and its reasoning; an id always means the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from anabranch.serving.recordings import Chunk, Trace

CHARACTERS_A_TOKEN = 4
"""An estimate, for traces whose tokens nobody counted."""

_WORD = re.compile(r"\s*\S+|\s+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token of a trace.

    Attributes:
        weight: 1; 0 for text that came without a token of its own (held back by a server until the end).
        chunk: number of the chunk that it came with.
        seconds: when that came; None where unknown.
    """

    text: str = ""
    reasoning: str = ""
    weight: int = 1
    chunk: int
    seconds: float | None = None
    confidence: float | None = None
    logprob: float | None = None


def tokens_of(trace: Trace) -> list[Token]:
    """The trace as tokens. A chunk of several is divided evenly by its characters; a text without chunks, by words."""
    chunks = trace.chunks or _words(trace)
    return list(chain.from_iterable(_divided(number, chunk) for number, chunk in enumerate(chunks)))


def seen(trace: Trace) -> int:
    """Tokens that came with text. The server may have counted more: the end of the turn, as a rule."""
    if trace.chunks:
        return sum(chunk.tokens for chunk in trace.chunks)
    characters = len(trace.text) + len(trace.reasoning)
    if trace.tokens is None or not characters:
        return -(-characters // CHARACTERS_A_TOKEN)
    return trace.tokens


def rest_after(tokens: Sequence[Token], text: str) -> tuple[list[Token], bool]:
    """The tokens behind a text that they begin with, and whether it ends where a token does."""
    missing, place = len(text), 0
    while missing and len(tokens[place].text) <= missing:
        missing -= len(tokens[place].text)
        place += 1
    rest = list(tokens[place:])
    if missing:
        rest[0] = replace(rest[0], text=rest[0].text[missing:])
    return rest, not missing


def _words(trace: Trace) -> list[Chunk]:
    """A trace that was recorded as a whole, a word a chunk; its tokens are spread by characters."""
    pieces = [Chunk.model_construct(reasoning=word) for word in _WORD.findall(trace.reasoning)]
    pieces += [Chunk.model_construct(text=word) for word in _WORD.findall(trace.text)]
    ends = list(accumulate(len(piece.text) + len(piece.reasoning) for piece in pieces))
    until = [seen(trace) * end // ends[-1] for end in ends]
    shares = [after - before for before, after in zip([0, *until], until, strict=False)]
    return [piece.model_copy(update={"tokens": share}) for piece, share in zip(pieces, shares, strict=True)]


def _divided(number: int, chunk: Chunk) -> Iterator[Token]:
    if not chunk.tokens:
        yield Token(text=chunk.text, reasoning=chunk.reasoning, weight=0, chunk=number, seconds=chunk.seconds)
    for index in range(chunk.tokens):
        yield Token(
            text=_share(chunk.text, index, chunk.tokens),
            reasoning=_share(chunk.reasoning, index, chunk.tokens),
            chunk=number,
            seconds=chunk.seconds,
            confidence=_at(chunk.confidences, index),
            logprob=_at(chunk.logprobs, index),
        )


def _share(text: str, index: int, parts: int) -> str:
    return text[len(text) * index // parts : len(text) * (index + 1) // parts]


def _at(values: Sequence[float], index: int) -> float | None:
    return values[index] if index < len(values) else None
