"""Orchestrator: the SDK's face. It wires backends, scheduler and strategies together, and answers questions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from anabranch.orchestrator import events
from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.backend import Backend
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.budget import Budget
from anabranch.orchestrator.conduct import conduct
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.events import Event
from anabranch.orchestrator.output import Output
from anabranch.orchestrator.registry import build_strategy, open_backend
from anabranch.orchestrator.run import Run
from anabranch.orchestrator.sampling import Sampling
from anabranch.orchestrator.scheduler import Lane, Limits
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.orchestrator.state import Listener, Role, RunState
from anabranch.orchestrator.strategy import Strategy, check_requirements

Question = str | Sequence[Mapping[str, Any]]


class AskArguments(TypedDict, total=False):
    """The keyword arguments of `Orchestrator.ask`."""

    strategy: str | Strategy
    params: Mapping[str, Any] | None
    model: str | None
    budget: Budget | None
    sampling: Sampling | None
    max_tokens: int | None
    stop: Sequence[str]
    listeners: Iterable[Listener]


def default_backend_url() -> str:
    """`$ANABRANCH_BACKEND`, else `$OPENAI_BASE_URL`, else the embedded model."""
    return os.environ.get("ANABRANCH_BACKEND") or os.environ.get("OPENAI_BASE_URL") or "local:"


class Orchestrator:
    """Answers requests by strategies, on one or more model servers.

        async with Orchestrator("sglang://localhost:30000") as orch:
            answer = await orch.ask("How do heat pumps work?", strategy="skeleton")

    One is enough for a process; any number of requests may run at once, and share its servers fairly. It belongs
    to one event loop.

    Args:
        backend: URL or object of the target's backend; see `default_backend_url` for what None means.
        roles: further models by role (`draft`, `judge`, …): `URL` or `URL#model`, or a backend object.
        limits: how hard each backend is driven.
        retry: when and how often failed calls are repeated.
    """

    def __init__(
        self,
        backend: str | Backend | None = None,
        *,
        roles: Mapping[str, str | Backend] | None = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._limits, self._retry = limits, retry
        self._lanes: dict[str | int, Lane] = {}
        self._roles = {"target": self._open(backend or default_backend_url())}
        for role, where in (roles or {}).items():
            self._roles[role] = self._open(where)

    def _open(self, where: str | Backend) -> Role:
        """The role for `URL#model`; one lane for each server."""
        model: str | None = None
        if isinstance(where, str):
            where, _, name = where.partition("#")
            model = name or None
        key = where if isinstance(where, str) else id(where)
        if key not in self._lanes:
            backend = open_backend(where) if isinstance(where, str) else where
            self._lanes[key] = Lane(backend, self._limits, self._retry)
        return Role(lane=self._lanes[key], model=model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all backends, also when closing one fails."""
        async with AsyncExitStack() as stack:
            for lane in self._lanes.values():
                stack.push_async_callback(lane.aclose)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The ways to the servers, the target's first: their load and limits."""
        return tuple(self._lanes.values())

    async def ask(
        self,
        question: Question,
        *,
        strategy: str | Strategy = "sequential",
        params: Mapping[str, Any] | None = None,
        model: str | None = None,
        budget: Budget | None = None,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        listeners: Iterable[Listener] = (),
    ) -> Answer:
        """Answer a question, or go on with a conversation.

        Args:
            question: text, or OpenAI messages; a last assistant message is continued.
            strategy: a strategy's name, with `params` for its parameters, or a strategy object.
            model: name of the target's model; None for the server's default.
            budget: what the run may use; at a limit it answers with the best that it has.
            max_tokens: cap on the final answer.
            stop: stop strings for the final answer.
            listeners: called with each event of the run.

        Raises:
            ConfigurationError: the request is wrong, before the first token.
            BackendError: the server failed, and the strategy could not do without it.
        """
        chosen = build_strategy(strategy, params)
        branch = Branch.of(question)
        if isinstance(stop, str):
            raise InvalidParameter("stop", "is a list of strings")
        if max_tokens is not None and max_tokens < 1:
            raise InvalidParameter("max_tokens", f"must be at least 1, got {max_tokens}")
        state = RunState(roles=self._casting(model), budget=budget or Budget(), listeners=listeners)
        run = Run(
            state,
            branch,
            sampling=sampling or Sampling(),
            max_tokens=max_tokens,
            stop=tuple(stop),
            output=Output(state.publish if state.listeners else None),
        )
        return await self._answer(run, chosen)

    def stream(self, question: Question, **arguments: Unpack[AskArguments]) -> RunStream:
        """The same as `ask`, as a stream of events; takes the same arguments.

        async with orch.stream("…", strategy="skeleton") as stream:
            async for event in stream:
                ...
        stream.answer
        """
        return RunStream(self, question, arguments)

    def _casting(self, model: str | None) -> dict[str, Role]:
        if model is None:
            return self._roles
        return {**self._roles, "target": Role(lane=self._roles["target"].lane, model=model)}

    async def _answer(self, run: Run, strategy: Strategy) -> Answer:
        state = run.state
        if state.listeners:
            state.publish(
                events.RunStarted(
                    t=0.0,
                    run_id=state.run_id,
                    strategy=strategy.name,
                    question=run.question.question,
                    backend=state.roles["target"].lane.backend.name,
                    started_at=time.time(),
                )
            )
        try:
            await check_requirements(strategy, state.roles)
            answer = await conduct(run, strategy)
        except BaseException as error:
            self._tell_end(state, "error", {}, repr(error) if not str(error) else str(error))
            raise
        summary = answer.to_dict()
        del summary["text"], summary["reasoning"]
        self._tell_end(state, answer.finish_reason, summary, None)
        return answer

    def _tell_end(self, state: RunState, reason: str, summary: dict[str, Any], error: str | None) -> None:
        if state.listeners:
            state.publish(events.RunFinished(t=state.now(), finish_reason=reason, summary=summary, error=error))


class RunStream:
    """The events of one run, as they happen. Leaving it early stops the run, on the servers too."""

    def __init__(self, orchestrator: Orchestrator, question: Question, arguments: AskArguments) -> None:
        self._orchestrator, self._question, self._arguments = orchestrator, question, arguments.copy()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[Answer] | None = None

    async def __aenter__(self) -> Self:
        self._arguments["listeners"] = (*self._arguments.get("listeners", ()), self._events.put_nowait)
        asked = self._orchestrator.ask(self._question, **self._arguments)
        self._task = asyncio.get_running_loop().create_task(asked, name="anabranch-stream")
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        interrupted: asyncio.CancelledError | None = None
        while not self._task.done():
            self._task.cancel()
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as again:
                interrupted = again
        if not self._task.cancelled():
            self._task.exception()
        if interrupted is not None:
            raise interrupted

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._task is None:
            raise RuntimeError("write: async with orch.stream(…) as stream")
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)
        self._task.result()

    @property
    def answer(self) -> Answer:
        """The answer, once the stream has ended. Raises what the run raised."""
        if self._task is None or not self._task.done():
            raise RuntimeError("the answer is there when the stream has ended")
        return self._task.result()
