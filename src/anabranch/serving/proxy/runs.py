"""Runs: those of one request, one for each of its `n` choices, side by side, as one stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from anabranch.orchestrator.answer import Answer, RunUsage
from anabranch.orchestrator.events import AnswerDelta, Event, GenerationFailed, GenerationStarted, RunStarted
from anabranch.orchestrator.orchestrator import AskArguments, Orchestrator
from anabranch.serving.proxy.requests import Observer, RequestInfo

_SEED_STEP = 7_919


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a choice's answer, or with `answer` its end."""

    index: int
    text: str = ""
    reasoning: str = ""
    answer: Answer | None = None


class Runs:
    """The runs of one request. Leaving the block stops those that still run, on the servers too.

    Args:
        arguments: of `Orchestrator.ask`; a seed is another one for each choice.
        progress: tell what the branches do as reasoning, until the answer begins.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        messages: Sequence[Mapping[str, Any]],
        arguments: AskArguments,
        *,
        n: int,
        progress: bool,
        request: RequestInfo,
        observers: Sequence[Observer],
    ) -> None:
        self._orchestrator, self._messages, self._arguments = orchestrator, messages, arguments
        self._progress, self._request, self._observers = progress, request, observers
        self._pieces: asyncio.Queue[Piece | BaseException] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._left = n
        self.answers: list[Answer | None] = [None] * n
        self.run_ids: list[str] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(index)) for index in range(len(self.answers))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = [task for task in self._tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def next(self, silence_s: float | None = None) -> Piece | None:
        """The next piece; None after so many seconds of silence. Raises what a run raised."""
        if self._pieces.empty() and silence_s is not None:
            try:
                async with asyncio.timeout(silence_s):
                    piece = await self._pieces.get()
            except TimeoutError:
                return None
        else:
            piece = await self._pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        if piece.answer is not None:
            self._left -= 1
        return piece

    @property
    def done(self) -> bool:
        """Whether the ends of all choices have been read."""
        return self._left == 0

    @property
    def finished(self) -> list[Answer]:
        """The answers, in the order of the choices; complete once `done`."""
        return [answer for answer in self.answers if answer is not None]

    @property
    def usage(self) -> RunUsage:
        """Of all choices together; they run side by side, so their span is the longest."""
        each = [answer.usage for answer in self.finished]
        summed = {
            name: sum(getattr(usage, name) for usage in each)
            for name in ("prompt", "cached", "completion", "work", "wasted", "branches")
        }
        return RunUsage(**summed, span=max((usage.span for usage in each), default=0))

    async def _run(self, index: int) -> None:
        arguments = self._arguments.copy()
        sampling = arguments.get("sampling")
        if index and sampling is not None and sampling.seed is not None:
            arguments["sampling"] = replace(sampling, seed=(sampling.seed + _SEED_STEP * index) & 0x7FFF_FFFF)
        heard = [observer.run_opened(self._request) for observer in self._observers]
        arguments["listeners"] = [_Ear(self, index).hear, *(each for each in heard if each is not None)]
        try:
            answer = await self._orchestrator.ask(self._messages, **arguments)
        except Exception as error:  # noqa: BLE001 - raised to whoever reads the pieces
            self._pieces.put_nowait(error)
            return
        self.answers[index] = answer
        self._pieces.put_nowait(Piece(index=index, answer=answer))

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        self._pieces.put_nowait(piece)

    @property
    def tells_progress(self) -> bool:
        """Whether the client wants to know what the branches do."""
        return self._progress


class _Ear:
    """Hears one run's events, and makes pieces of what its client is to read."""

    def __init__(self, runs: Runs, index: int) -> None:
        self._runs, self._index = runs, index
        self._labels: dict[int, str] = {}
        self._progress = runs.tells_progress

    def hear(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, AnswerDelta):
            self._progress = self._progress and not event.text
            self._runs.put(Piece(index=self._index, text=event.text, reasoning=event.reasoning))
        elif isinstance(event, RunStarted):
            self._runs.run_ids.append(event.run_id)
        elif self._progress and (told := self._told(event)):
            self._runs.put(Piece(index=self._index, reasoning=told))

    def _told(self, event: Event) -> str:
        if event.type == "generation_queued":
            self._labels[event.id] = event.label
        elif isinstance(event, GenerationStarted):
            return f"{self._labels.get(event.id, event.id)} …\n"
        elif event.type == "generation_finished":
            return f"{self._labels.get(event.id, event.id)}: {event.completion} tokens\n"
        elif isinstance(event, GenerationFailed):
            return f"{self._labels.get(event.id, event.id)} failed\n"
        elif event.type == "fell_back":
            return f"plain decoding: {event.reason}\n"
        return ""
