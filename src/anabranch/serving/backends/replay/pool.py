"""The traces of a recording by their prompt, and which of them were given out. No clock, no event loop.

Invariant: a trace is given out once, until all of its problem were and the pool may start anew.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.branch import Branch, Message
from anabranch.orchestrator.errors import RequestRejected
from anabranch.serving.backends.replay.tokens import Token, rest_after, seen, tokens_of
from anabranch.serving.recordings import Trace

Prompt = tuple[tuple[str, str], ...]
"""A conversation as roles and texts."""
_BEGINNING = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A trace with its place in the file's vocabulary: `first` is the id of its first token."""

    trace: Trace
    first: int

    def tokens(self) -> list[tuple[int, Token]]:
        """The tokens with their ids; one without weight has the id of the one before it."""
        found, id = [], self.first - 1
        for token in tokens_of(self.trace):
            id += token.weight
            found.append((id, token))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is left of a trace behind a branch.

    Attributes:
        ids: of the tokens, one each; empty where the branch ends within a token.
        since: when the piece before it came, in the recording's seconds.
        unseen: tokens that count at the end, and have no text.
    """

    trace: Trace
    tokens: Sequence[Token]
    ids: Sequence[int]
    since: float
    unseen: int


_Shelf = list[Book]
"""The traces of one prompt, by sample number."""


class Pool:
    """All traces of a recording.

    Args:
        name: of the file, for errors.
        again: start a problem anew when all of its traces were given out.
    """

    def __init__(self, name: str, traces: Iterable[Trace], *, again: bool = False) -> None:
        self._name, self._again = name, again
        self._shelves: dict[Prompt, _Shelf] = {}
        self._books: list[Book] = []
        self._given: set[int] = set()  # by the id of the first token
        self.size = 0
        """Ids in its vocabulary."""
        for trace in sorted(traces, key=lambda trace: trace.sample):
            self._add(trace)
        self._firsts = [book.first for book in self._books]
        self.models = tuple(dict.fromkeys(book.trace.model for book in self._books if book.trace.model))

    @property
    def top_logprobs(self) -> int:
        """How many candidates the confidences were taken over; 0 where a trace says nothing of them."""
        if not self._books or not all(book.trace.confident for book in self._books):
            return 0
        return max(book.trace.top_logprobs or 1 for book in self._books)

    def take(self, call: Call) -> Part:
        """What a call gets: the rest of the trace that its branch came from, else the next trace of its problem.

        Raises:
            RequestRejected: the problem or the branch was not recorded, or all traces were given out.
        """
        branch = call.branch
        shelf = self._shelf(branch)
        if not any(segment.text or segment.token_ids for segment in branch.segments):
            return _rest(self._next(shelf, call), 0)
        book, after = self._origin(shelf, branch)
        self._given.add(book.first)
        return _after(book, after, len(branch.text)) if after is not None else _behind(book, branch.text)

    def _add(self, trace: Trace) -> None:
        book = Book(trace=trace, first=self.size)
        # no two traces may begin at the same place, so one without tokens takes an id, too
        self.size += max(1, seen(trace))
        self._books.append(book)
        shelves = {id(shelf): shelf for key in _prompts(trace) for shelf in [self._at(key)]}
        for shelf in shelves.values():
            shelf.append(book)

    def _at(self, prompt: Prompt) -> _Shelf:
        return self._shelves.setdefault(prompt, [])

    def _shelf(self, branch: Branch) -> _Shelf:
        shelf = self._shelves.get(_prompt(message.to_wire() for message in branch.messages))
        if shelf is None:
            raise RequestRejected(
                f"{self._name} has no trace of the prompt {_beginning(branch)}; ask a recorded problem, "
                "as its `problem` or its `messages` say"
            )
        return shelf

    def _next(self, shelf: _Shelf, call: Call) -> Book:
        books = [book for book in shelf if call.model in (None, "", book.trace.model)] or shelf
        left = [book for book in books if book.first not in self._given]
        if not left and self._again:
            self._given -= {book.first for book in books}
            left = books
        if not left:
            raise RequestRejected(
                f"{self._name}: all {len(books)} traces of {_beginning(call.branch)} are given out; "
                "?again=1 behind the file's name starts anew"
            )
        seed = call.sampling.seed
        book = left[0] if seed is None else random.Random(f"{seed} {left[0].trace.id}").choice(left)
        self._given.add(book.first)
        return book

    def _origin(self, shelf: _Shelf, branch: Branch) -> tuple[Book, int | None]:
        """The trace that a branch is the beginning of, and the last of its ids where the branch has them."""
        last = branch.segments[-1]
        if last.token_ids and last.vocabulary == self._name:
            book = self._books[bisect_right(self._firsts, last.token_ids[-1]) - 1]
            if book in shelf and book.trace.text.startswith(branch.text):
                return book, last.token_ids[-1]
        found = [book for book in shelf if book.trace.text.startswith(branch.text)]
        if not found:
            raise RequestRejected(
                f"{self._name}: no trace of {_beginning(branch)} begins with {branch.text[:_BEGINNING]!r}; "
                "only a beginning of a recorded trace can be continued"
            )
        return next((book for book in found if book.first in self._given), found[0]), None


def _after(book: Book, last: int, length: int) -> Part:
    """What is left of a trace after the token of an id; so many characters of its text are known."""
    gone = end = 0
    for place, (id, token) in enumerate(book.tokens(), 1):
        end += len(token.text)
        if id < last or (id == last and (token.weight or end <= length)):
            gone = place
    return _rest(book, gone)


def _behind(book: Book, text: str) -> Part:
    """What is left of a trace behind a text that it begins with."""
    whole = [token for _, token in book.tokens()]
    tokens, exact = rest_after(whole, text)
    part = _rest(book, len(whole) - len(tokens))
    return part if exact else replace(part, tokens=tokens, ids=())


def _rest(book: Book, gone: int) -> Part:
    """A trace without so many of its tokens."""
    numbered = book.tokens()
    return Part(
        trace=book.trace,
        tokens=[token for _, token in numbered[gone:]],
        ids=[id for id, _ in numbered[gone:]],
        since=(numbered[gone - 1][1].seconds or 0.0) if gone else 0.0,
        unseen=max(0, (book.trace.tokens or 0) - seen(book.trace)),
    )


def _prompts(trace: Trace) -> list[Prompt]:
    """The conversations that ask for it: the problem alone, and what was sent."""
    keys = [_prompt([{"role": "user", "content": trace.problem}])] if trace.problem else []
    return keys + ([_prompt(trace.messages)] if trace.messages else [])


def _prompt(messages: Iterable[Mapping[str, Any]]) -> Prompt:
    return tuple((each.role, each.text.strip()) for each in map(Message.from_wire, messages))


def _beginning(branch: Branch) -> str:
    text = " ".join(branch.question.split())
    return repr(text[:_BEGINNING] + ("…" if len(text) > _BEGINNING else ""))
