"""Branch: an immutable position in the prefix tree.

A branch is all that the model would see if asked to continue here: the messages, and what the assistant has
written of its turn so far. It also knows which generations it came from, so that the engine can derive the run's
computation graph without help from the strategy. A branch never talks to a server.

Invariant: a segment's token ids, where there are any, decode to exactly its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NewType, Protocol, Self

from anabranch.orchestrator.errors import InvalidParameter

if TYPE_CHECKING:
    from anabranch.orchestrator.generation import Generation

GenerationId = NewType("GenerationId", int)
"""Number of a generation within its run, from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, in OpenAI's terms.

    Attributes:
        content: text, or a tuple of content parts (text, images, audio) as they came.
        extra: further fields (`name`, `tool_calls`, `tool_call_id`, …), kept as they came.
    """

    role: str
    content: str | tuple[Mapping[str, Any], ...] | None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """From an OpenAI message object. Raises InvalidParameter when it is none."""
        if not isinstance(wire, Mapping) or not isinstance(wire.get("role"), str):
            raise InvalidParameter("messages", f"each needs a role and content, got {str(wire)[:80]!r}")
        content = wire.get("content")
        if isinstance(content, list | tuple):
            content = tuple(content)
        elif content is not None and not isinstance(content, str):
            raise InvalidParameter("messages", f"content must be text or a list of parts, got {content!r}")
        extra = {key: value for key, value in wire.items() if key not in ("role", "content")}
        return cls(role=wire["role"], content=content, extra=extra)

    def to_wire(self) -> dict[str, Any]:
        """As an OpenAI message object."""
        content: Any = list(self.content) if isinstance(self.content, tuple) else self.content
        return {"role": self.role, "content": content, **self.extra}

    @property
    def text(self) -> str:
        """The text parts, joined; other parts are left out."""
        if isinstance(self.content, tuple):
            return "".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")
        return self.content or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the assistant's turn: written by one generation, or put there by hand.

    Attributes:
        text: the answer text.
        reasoning: the reasoning that the server reported apart from the text.
        token_ids: the ids that the model wrote, where the server gave them; empty otherwise.
        vocabulary: which tokenizer the ids belong to; ids are used only where it is the same.
    """

    text: str
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    vocabulary: str = ""


class Source(Protocol):
    """What a branch can be made dependent on: a generation, or the answer of a delegated run."""

    @property
    def produced_by(self) -> tuple[GenerationId, ...]:
        """The generations behind it."""
        ...

    @property
    def depth(self) -> int:
        """Generations on the longest chain of dependencies behind it."""
        ...

    @property
    def span(self) -> int:
        """Completion tokens on the chain of dependencies that has most of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """An immutable position in the prefix tree: messages, the assistant's turn so far, and where it came from.

    Attributes:
        messages: the conversation up to the assistant's turn.
        segments: the assistant's turn so far; empty when the model is to begin it.
        parents: the generations that this branch directly depends on.
        depth: generations on the longest chain of dependencies that led here.
        span: completion tokens on the chain of dependencies that has most of them.
    """

    messages: tuple[Message, ...]
    segments: tuple[Segment, ...] = ()
    parents: tuple[GenerationId, ...] = ()
    depth: int = 0
    span: int = 0

    @classmethod
    def of(cls, question: str | Sequence[Mapping[str, Any]]) -> Self:
        """From a question, or from OpenAI messages; a last assistant message is the turn to go on with."""
        if isinstance(question, str):
            if not question.strip():
                raise InvalidParameter("question", "is empty; say what is to be answered")
            return cls(messages=(Message(role="user", content=question),))
        messages = tuple(Message.from_wire(message) for message in question)
        if not messages:
            raise InvalidParameter("messages", "the list is empty; it needs at least one message")
        last = messages[-1]
        if last.role == "assistant" and isinstance(last.content, str) and not last.extra:
            return cls(messages=messages[:-1], segments=(Segment(text=last.content),))
        return cls(messages=messages)

    @property
    def text(self) -> str:
        """The assistant's turn so far, without reasoning reported apart."""
        return "".join(segment.text for segment in self.segments)

    @property
    def question(self) -> str:
        """The text of the last user message."""
        return next((m.text for m in reversed(self.messages) if m.role == "user"), "")

    @property
    def last_turn(self) -> str:
        """The text of its last turn: the assistant's so far, or else the last message."""
        return self.text if self.segments or not self.messages else self.messages[-1].text

    def since(self, start: Branch) -> str:
        """The text of the assistant's turn that was written after `start`: without the caller's prefill, for instance.

        Raises:
            InvalidParameter: this branch does not continue `start`.
        """
        if self.messages != start.messages or _shared_prefix([self.segments, start.segments]) < len(
            start.segments
        ):
            raise InvalidParameter("start", "this branch does not continue it")
        return "".join(segment.text for segment in self.segments[len(start.segments) :])

    def message(self, role: str, text: str) -> Self:
        """This branch with one more message; an open assistant turn is closed first."""
        closed = self.messages
        if self.segments:
            closed += (Message(role="assistant", content=self.text),)
        return replace(self, messages=(*closed, Message(role=role, content=text)), segments=())

    def user(self, text: str) -> Self:
        """This branch with one more user message."""
        return self.message("user", text)

    def say(self, text: str) -> Self:
        """This branch with words put into the assistant's mouth (assistant prefill)."""
        return replace(self, segments=(*self.segments, Segment(text=text))) if text else self

    def ask(self, messages: Sequence[Message]) -> Self:
        """Another conversation at the same place in the run: what was generated so far is still its past."""
        return replace(self, messages=tuple(messages), segments=())

    def extend(self, generation: Generation, *, tail: bool = True) -> Self:
        """This branch continued by what was generated from it, token for token where the server gave ids.

        Args:
            tail: keep what the model wrote beyond `generation.text`: the stop string that ended it. Without
                it the text alone is kept, and its tokens are not exact at the cut.
        """
        segment = Segment(
            text=generation.text + (generation.tail if tail else ""),
            reasoning=generation.reasoning,
            token_ids=generation.token_ids if tail or not generation.tail else (),
            vocabulary=generation.vocabulary,
        )
        return replace(
            self,
            segments=(*self.segments, segment),
            parents=generation.produced_by,
            depth=max(self.depth, generation.depth),
            span=max(self.span, generation.span),
        )

    def after(self, *sources: Source) -> Self:
        """This branch, made dependent on what went into it by another way: a prompt that quotes it, as a rule."""
        if not sources:
            return self
        added = [parent for source in sources for parent in source.produced_by]
        return replace(
            self,
            parents=tuple(dict.fromkeys([*self.parents, *added])),
            depth=max(self.depth, *(source.depth for source in sources)),
            span=max(self.span, *(source.span for source in sources)),
        )

    @classmethod
    def join(cls, branches: Sequence[Branch]) -> Branch:
        """One branch from several that share a prefix: the prefix, then what each added, in the order given.

        Over HTTP the first one's tokens are still in the server's cache; those of the others are computed again
        at their new positions. Where order is free, put the longest first.

        Raises:
            InvalidParameter: no branches, or they belong to different conversations.
        """
        if not branches:
            raise InvalidParameter("branches", "nothing to join")
        first = branches[0]
        if any(branch.messages != first.messages for branch in branches):
            raise InvalidParameter("branches", "can join only branches of one conversation")
        shared = _shared_prefix([branch.segments for branch in branches])
        tails = [segment for branch in branches for segment in branch.segments[shared:]]
        return replace(
            first,
            segments=(*first.segments[:shared], *tails),
            parents=tuple(dict.fromkeys(parent for branch in branches for parent in branch.parents)),
            depth=max(branch.depth for branch in branches),
            span=max(branch.span for branch in branches),
        )


def _shared_prefix(turns: Sequence[tuple[Segment, ...]]) -> int:
    """How many leading segments all turns have in common."""
    count = 0
    for segments in zip(*turns, strict=False):
        # Identity, not equality: two threads may say the same, and each stays one.
        if any(segment is not segments[0] for segment in segments):
            break
        count += 1
    return count
