"""`anabranch ask`: one question, its branches, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anabranch.cli import errors, options
from anabranch.cli.settings import configure, nothing_configured, pairs, parameters, question_text
from anabranch.cli.signals import stopped_by_signals
from anabranch.cli.tracefile import TraceFile

if TYPE_CHECKING:
    from anabranch.cli.output import Output
    from anabranch.orchestrator.answer import Answer
    from anabranch.orchestrator.orchestrator import RunStream
    from anabranch.orchestrator.state import Listener

DEFAULT_STRATEGY = "skeleton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for.

    Attributes:
        arguments: those of `Orchestrator.stream`, but for the question.
        show: the live tree; None shows it where the answer goes to a terminal.
    """

    question: str
    backend: str | None
    roles: Mapping[str, str]
    arguments: Mapping[str, Any]
    as_json: bool = False
    trace: Path | None = None
    show: bool | None = None
    budget: Mapping[str, float] = field(default_factory=dict)


def ask(
    question: options.Question,
    backend: options.Backend = None,
    strategy: options.Strategy = DEFAULT_STRATEGY,
    param: options.Parameters = None,
    model: options.Model = None,
    role: options.Roles = None,
    as_json: options.AsJson = False,
    trace: options.Trace = None,
    show: options.Show = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    budget_tokens: options.BudgetTokens = None,
    budget_branches: options.BudgetBranches = None,
    deadline: options.Deadline = None,
) -> None:
    """Answer a question by branches that decode side by side.

    On a terminal, shows the branches while they run. Piped, writes the answer's text and nothing else.
    Exit code 3: the budget or the deadline cut the answer short.
    """
    with errors.told():
        from anabranch.orchestrator.sampling import Sampling

        asked = Asked(
            question=question_text(question),
            backend=backend,
            roles=pairs("--role", role or ()),
            arguments={
                "strategy": strategy,
                "params": parameters(param or ()),
                "model": model,
                "sampling": Sampling(temperature=temperature, seed=seed),
                "max_tokens": max_tokens,
            },
            as_json=as_json,
            trace=trace,
            show=show,
            budget=_given(tokens=budget_tokens, branches=budget_branches, deadline_s=deadline),
        )
        raise typer.Exit(_run(asked))


def _given(**limits: float | None) -> dict[str, float]:
    return {name: limit for name, limit in limits.items() if limit is not None}


def _run(asked: Asked) -> int:
    if asked.backend:
        configure(asked.backend)
    if nothing_configured(asked.backend):
        errors.tell(
            "no server is named (--backend, ANABRANCH_BACKEND, OPENAI_BASE_URL): a small embedded model answers"
        )
    answer = asyncio.run(_ask(asked))
    return errors.CUT_SHORT if answer.finish_reason in ("budget", "deadline") else errors.OK


async def _ask(asked: Asked) -> Answer:
    from anabranch.cli.output import choose_output
    from anabranch.orchestrator.budget import Budget
    from anabranch.orchestrator.orchestrator import Orchestrator

    output = choose_output(as_json=asked.as_json, show=asked.show)
    budget = Budget(**asked.budget)  # type: ignore[arg-type]
    async with stopped_by_signals(), Orchestrator(asked.backend, roles=asked.roles) as orchestrator:
        stream = partial(orchestrator.stream, asked.question, budget=budget, **asked.arguments)
        try:
            answer = await _watch(stream, output, asked.trace)
        except BaseException:
            output.abandon()
            raise
        output.conclude(answer)
        return answer


async def _watch(stream: Callable[..., RunStream], output: Output, trace: Path | None) -> Answer:
    """Run it, shown and written down."""
    async with AsyncExitStack() as stack:
        # those that cannot fail listen at the source, and so also hear how a run that is stopped comes to its end
        listeners: list[Listener] = []
        if trace is not None:
            listeners.append(stack.enter_context(TraceFile(trace)).feed)
        if output.display is not None:
            await stack.enter_async_context(output.display.showing())
            listeners.append(output.display.feed)
        running = await stack.enter_async_context(stream(listeners=listeners))
        async for event in running:
            if output.plain is not None:
                output.plain.feed(event)
        return running.answer
