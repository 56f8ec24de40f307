"""Generation: what one call to a model gave. LiveGeneration: the same while it is still being written.

A `LiveGeneration` can be awaited for the whole and iterated for its deltas, by any number of readers, also after its
end. Cancelling it is not an error: awaiting it then gives what there was so far. A failure is raised to whoever
awaits or iterates.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.backend import Delta, FinishReason, SpecFigures, TokenLogprob, TokenUsage
from anabranch.orchestrator.branch import Branch, GenerationId
from anabranch.orchestrator.feed import Feed, TextBuffer
from anabranch.orchestrator.scope import CLEAN_UP_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anabranch.orchestrator.accounting import GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one call to a model gave: a frozen value.

    Attributes:
        source: the branch that it continued.
        tail: what the model wrote beyond `text`: the stop string that ended it, as a rule.
        depth: generations on the longest chain of dependencies that ends here, this one included.
        span: completion tokens on the chain of dependencies that has most of them, these included.
        label_logprobs: log-probability of each label of a scoring call.
    """

    id: GenerationId
    source: Branch
    text: str
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    vocabulary: str = ""
    tail: str = ""
    finish_reason: FinishReason = "stop"
    matched: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    model: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    label_logprobs: Mapping[str, float] | None = None
    spec: SpecFigures | None = None
    depth: int = 1
    span: int = 0

    @property
    def parents(self) -> tuple[GenerationId, ...]:
        """The generations that this one directly depends on."""
        return self.source.parents

    @property
    def complete(self) -> bool:
        """Whether the model itself ended it: neither a cap nor we cut it short."""
        return self.finish_reason in ("stop", "tool_calls")

    @property
    def branch(self) -> Branch:
        """Where the model stands now: the source, continued by this generation."""
        return self.source.extend(self)

    @property
    def produced_by(self) -> tuple[GenerationId, ...]:
        """The generations that wrote this: itself."""
        return (self.id,)


class LiveGeneration:
    """A generation while it is being written. Made by `Run.generate`, never by hand.

    `await live` gives the whole `Generation`; `async for delta in live` gives its pieces, from the first one on,
    to any number of readers. Both raise the error that ended it, if one did.
    """

    __slots__ = (
        "_feed",
        "_on_settled",
        "_result",
        "_task",
        "_written",
        "record",
        "source",
        "stopped_for",
        "tokens",
    )

    def __init__(self, source: Branch, record: GenerationRecord) -> None:
        self.source, self.record = source, record
        self.tokens = 0
        """Completion tokens so far."""
        self.stopped_for: FinishReason | None = None
        # Rows rather than deltas: tuples of plain values are no work for the garbage collector, and there are many.
        self._feed: Feed[tuple[Any, ...]] = Feed()
        self._written = TextBuffer()
        self._result: Generation | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = self.record.finish_reason or "running"
        return f"<LiveGeneration {self.id} {self.record.label!r}: {self.tokens} tokens, {state}>"

    @property
    def id(self) -> GenerationId:
        """Its number within the run."""
        return self.record.id

    @property
    def text(self) -> str:
        """What has been written so far, without reasoning."""
        return self._written.text

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._feed.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended it, if one did."""
        return self._feed.error

    def cancel(self, reason: FinishReason = "cancelled") -> None:
        """Stop it, on the server too. Awaiting it then gives what there was so far. Idempotent."""
        if not self.done and self.stopped_for is None:
            self.stopped_for = reason
            self._cancel_task()

    def _cancel_task(self) -> None:
        """Cancel, and again whenever its clean-up has had its time."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            asyncio.get_running_loop().call_later(CLEAN_UP_S, self._cancel_task)

    def __await__(self) -> Generator[object, None, Generation]:
        return self._whole().__await__()

    async def _whole(self) -> Generation:
        self.record.read = True
        await self._feed.ended()
        if self._feed.error is not None:
            raise self._feed.error
        assert self._result is not None
        return self._result

    async def __aiter__(self) -> AsyncIterator[Delta]:
        self.record.read = True
        async for row in self._feed:
            yield Delta(*row)

    # The engine's side: called by the task that drives it.

    def attach(self, task: asyncio.Task[None]) -> None:
        """Name the task that writes it."""
        self._task = task

    async def settled(self) -> None:
        """Wait for its end without reading it, and without raising what ended it."""
        await self._feed.ended()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once it has ended; at once if it has."""
        self._feed.when_closed(callback)

    def feed(self, delta: Delta) -> None:
        """Add a piece."""
        self.tokens += delta.tokens
        if delta.text:
            self._written.add(delta.text)
        self._feed.append(
            (delta.text, delta.reasoning, delta.token_ids, delta.tokens, delta.logprobs, delta.end)
        )

    def settle(self, result: Generation | None, error: BaseException | None = None) -> None:
        """End it, once, with a result or an error."""
        if not self.done:
            self._result, self._task = result, None
            self._feed.close(error)
