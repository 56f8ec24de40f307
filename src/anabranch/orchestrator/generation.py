"""Generation: what one call to a model gave. LiveGeneration: the same while it is still being written.

A `LiveGeneration` can be awaited for the whole and iterated for its deltas, by any number of readers, also after its
end. Cancelling it is not an error: awaiting it then gives what there was so far. A failure is raised to whoever
awaits or iterates.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.backend import Delta, FinishReason, SpecFigures, TokenLogprob, TokenUsage
from anabranch.orchestrator.branch import Branch, GenerationId
from anabranch.orchestrator.errors import BudgetExhausted
from anabranch.orchestrator.feed import Feed
from anabranch.orchestrator.records import READ, Records
from anabranch.orchestrator.scope import CLEAN_UP_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anabranch.orchestrator.accounting import GenerationRecord


_NO_MORE = ("", (), 1, (), None)
"""What a piece of nothing but text has beside it: see `Delta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one call to a model gave: a frozen value.

    Attributes:
        source: the branch that it continued.
        tail: what the model wrote beyond `text`: the stop string that ended it, as a rule.
        depth: generations on the longest chain of dependencies that ends here, this one included.
        span: completion tokens on the chain of dependencies that has most of them, these included.
        label_logprobs: log-probability of each label of a scoring call.
        measured: what a measuring call found.
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
    measured: tuple[float, ...] = ()
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

    def check_whole(self, what: str) -> None:
        """Raises BudgetExhausted where a limit, or we, cut short what is of no use in part: `what`, for people."""
        if self.finish_reason == "deadline":
            raise BudgetExhausted("deadline", f"{what} was cut short")
        if self.finish_reason in ("budget", "cancelled"):
            raise BudgetExhausted("tokens", f"{what} was cut short")

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
        "_joined",
        "_more",
        "_records",
        "_result",
        "_task",
        "_text",
        "record",
        "source",
        "stopped_for",
        "tokens",
    )

    def __init__(self, source: Branch, record: GenerationRecord, records: Records) -> None:
        self.source, self.record, self._records = source, record, records
        self.tokens = 0
        """Completion tokens so far."""
        self.stopped_for: FinishReason | None = None
        # Not as deltas: there are many, and texts and tuples of plain values are less work for the garbage collector.
        self._feed: Feed[str] = Feed()
        """The text of each piece."""
        self._more: dict[int, tuple[Any, ...]] = {}
        """What a piece has beside its text, where it has anything."""
        self._text, self._joined = "", 0
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
        texts = self._feed.items
        if self._joined < len(texts):
            self._text += "".join(texts[self._joined :])
            self._joined = len(texts)
        return self._text

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
        self._records.mark(self.id, READ)
        await self._feed.ended()
        if self._feed.error is not None:
            raise self._feed.error
        assert self._result is not None
        return self._result

    async def __aiter__(self) -> AsyncIterator[Delta]:
        self._records.mark(self.id, READ)
        index = 0
        async for text in self._feed:
            yield Delta(text, *self._more.get(index, ()))
            index += 1

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
        more = (delta.reasoning, delta.token_ids, delta.tokens, delta.logprobs, delta.end)
        if more != _NO_MORE:
            self._more[len(self._feed.items)] = more
        self._feed.append(delta.text)

    def written(self) -> Delta:
        """All pieces so far, as one."""
        more = self._more.values()
        return Delta(
            text=self.text,
            reasoning="".join([reasoning for reasoning, *_ in more]),
            token_ids=tuple(chain.from_iterable([ids for _, ids, *_ in more])),
            tokens=self.tokens,
            logprobs=tuple(chain.from_iterable([logprobs for _, _, _, logprobs, _ in more])),
        )

    def settle(self, result: Generation | None, error: BaseException | None = None) -> None:
        """End it, once, with a result or an error."""
        if not self.done:
            self._result, self._task = result, None
            self._feed.close(error)
