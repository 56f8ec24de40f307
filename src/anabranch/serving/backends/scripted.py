"""A backend that answers as it is told: for tests, yours and ours, and for benchmarks of the engine itself.

    backend = ScriptedBackend([Reply.of("Paris."), Reply.of("Rome.", delay_s=2.0), Reply.failing(error)])
    backend = ScriptedBackend(lambda call: Reply.of(f"You asked: {call.branch.question}"))

It keeps the calls that it was given, and how each ended, in `calls`. Delays are `asyncio.sleep`, so that under
`anabranch.testing.run_virtual` they cost no time. `scripted:` as a URL echoes the question.

It is no model of a server: it shows what the engine does, never that a server would agree.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

from anabranch.orchestrator.backend import (
    Call,
    Capabilities,
    Delta,
    End,
    FinishReason,
    SpecFigures,
    TokenLogprob,
    TokenUsage,
)
from anabranch.orchestrator.errors import AnabranchError, BackendError, InvalidParameter

_TOKEN = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the backend does with one call.

    Attributes:
        chunks: the pieces of text, one token each unless `tokens` says otherwise.
        delay_s: seconds before the first piece; `chunk_s` those before each further one.
        tokens: completion tokens in all, spread over the pieces; None counts one a piece.
        error: raised after `fail_after` pieces.
        hang: write nothing more after `fail_after` pieces, and never end.
        logprobs: of each piece, for calls that ask for log-probabilities; pieces beyond have none.
        without_usage: leave the token counts out of the end, as some servers do.
    """

    chunks: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    delay_s: float = 0.0
    chunk_s: float = 0.0
    tokens: int | None = None
    prompt_tokens: int = 10
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: BackendError | None = None
    fail_after: int = 0
    hang: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()
    without_usage: bool = False
    label_logprobs: Mapping[str, float] | None = None
    measured: tuple[float, ...] = (0.0,)
    matched: str | None = None
    spec: SpecFigures | None = None

    @classmethod
    def of(cls, text: str, *, delay_s: float = 0.0, chunk_s: float = 0.0, tokens: int | None = None) -> Self:
        """A reply of this text, a word a piece."""
        return cls(chunks=tuple(_TOKEN.findall(text)), delay_s=delay_s, chunk_s=chunk_s, tokens=tokens)

    @classmethod
    def failing(cls, error: BackendError, *, after: str = "", delay_s: float = 0.0) -> Self:
        """A failure, after some text."""
        chunks = tuple(_TOKEN.findall(after))
        return cls(chunks=chunks, error=error, fail_after=len(chunks), delay_s=delay_s)

    @classmethod
    def hanging(cls, after: str = "") -> Self:
        """Some text, and then nothing, for ever."""
        chunks = tuple(_TOKEN.findall(after))
        return cls(chunks=chunks, hang=True, fail_after=len(chunks))


@dataclass(slots=True, kw_only=True)
class CallLog:
    """A call that the backend was given, and what became of it. `closed`: given up by the engine before its end."""

    call: Call
    state: Literal["running", "done", "failed", "closed"] = "running"
    started_at: float = 0.0
    ended_at: float | None = None


@dataclass(kw_only=True)
class _Script:
    replies: Iterable[Reply]

    def __call__(self, call: Call) -> Reply:
        try:
            return next(self._iterator)
        except StopIteration:
            raise BackendError(f"the script has no reply for call {call.branch.question[:60]!r}") from None

    def __post_init__(self) -> None:
        self._iterator = iter(self.replies)


DEFAULT_CAPABILITIES = Capabilities(
    models=("scripted",),
    prefill=True,
    constraints=frozenset({"json_schema", "regex", "ebnf"}),
    top_logprobs=20,
    labels=True,
    measures=frozenset({"embedding", "reward", "likelihood"}),
    abort=True,
    cached_tokens=True,
    max_concurrency=1_000_000,
)


@dataclass(kw_only=True, init=False)
class ScriptedBackend:
    """A backend that answers as it is told.

    Args:
        script: the replies in the order of the calls, or a function from a call to its reply.
        capabilities: what it claims to do.
    """

    calls: list[CallLog] = field(default_factory=list)

    def __init__(
        self,
        script: Iterable[Reply] | Callable[[Call], Reply],
        *,
        capabilities: Capabilities = DEFAULT_CAPABILITIES,
        name: str = "scripted:",
        keep_calls: bool = True,
    ) -> None:
        self._reply = script if callable(script) else _Script(replies=script)
        self._capabilities, self._name, self._keep = capabilities, name, keep_calls
        self.calls = []
        self.running = 0
        self.most_running = 0
        self.closed = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    async def probe(self) -> Capabilities:
        """The capabilities that it was given."""
        return self._capabilities

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.closed = True

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Act out the reply for this call."""
        with self._logged(call):
            reply = self._reply(call)
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            for index, piece in enumerate(reply.reasoning):
                if index and reply.chunk_s:
                    await asyncio.sleep(reply.chunk_s)
                yield Delta(reasoning=piece)
            chunks, finish = _cap(reply, call)
            per_chunk = _spread(reply.tokens, len(chunks))
            for index, chunk in enumerate(chunks):
                if index == reply.fail_after:
                    await _fail(reply)
                if (index or reply.reasoning) and reply.chunk_s:
                    await asyncio.sleep(reply.chunk_s)
                known = reply.logprobs[index : index + 1] if call.top_logprobs else ()
                yield Delta(text=chunk, tokens=per_chunk[index], logprobs=known)
            if reply.fail_after >= len(chunks):
                await _fail(reply)
            yield _end(reply, call, finish, len(reply.reasoning) + sum(per_chunk))

    @contextmanager
    def _logged(self, call: Call) -> Iterator[None]:
        log = CallLog(call=call, started_at=asyncio.get_running_loop().time())
        if self._keep:
            self.calls.append(log)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            yield
            log.state = "done"
        except AnabranchError:
            log.state = "failed"
            raise
        finally:
            if log.state == "running":
                log.state = "closed"
            log.ended_at = asyncio.get_running_loop().time()
            self.running -= 1


def _end(reply: Reply, call: Call, finish: FinishReason, written: int) -> Delta:
    labels = reply.label_logprobs
    if call.labels and labels is None:
        labels = dict.fromkeys(call.labels, -1.0)
    usage = TokenUsage(
        prompt=reply.prompt_tokens,
        cached=reply.cached_tokens,
        completion=written,
        reasoning=len(reply.reasoning),
    )
    end = End(
        finish_reason=finish,
        usage=None if reply.without_usage else usage,
        matched=reply.matched,
        tail=reply.matched or "",
        label_logprobs=labels,
        measured=reply.measured if call.measure else (),
        spec=reply.spec,
    )
    return Delta(tokens=0, end=end)


def _cap(reply: Reply, call: Call) -> tuple[tuple[str, ...], FinishReason]:
    """The pieces that `max_tokens` leaves, a token each."""
    if call.labels or call.measure:
        return (), "stop"
    cap = call.max_tokens
    if cap is not None and reply.tokens is None and len(reply.chunks) > cap:
        return reply.chunks[:cap], "length"
    return reply.chunks, reply.finish_reason or "stop"


def _spread(tokens: int | None, pieces: int) -> list[int]:
    """So many tokens over so many pieces."""
    if tokens is None:
        return [1] * pieces
    share, rest = divmod(tokens, pieces or 1)
    return [share + (index < rest) for index in range(pieces)]


async def _fail(reply: Reply) -> None:
    if reply.hang:
        await asyncio.Event().wait()
    if reply.error is not None:
        raise reply.error


def from_url(url: str) -> ScriptedBackend:
    """`scripted:` echoes the question, a word a piece."""
    if url.rstrip("/") not in ("scripted:", "scripted"):
        raise InvalidParameter("backend", f"{url!r}: write scripted: without anything behind it")
    return ScriptedBackend(lambda call: Reply.of(call.branch.question))
