"""Records traces of problems from any backend, through the engine: slots, retries and counts are the engine's part.

Invariant: a trace is handed on as soon as it has ended, and only one that the model or its cap ended: a call that fails
or is stopped leaves nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.orchestrator.backend import Delta, TokenLogprob
from anabranch.orchestrator.errors import AnabranchError, BackendError, ConfigurationError
from anabranch.orchestrator.generation import Generation
from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.run import Run
from anabranch.orchestrator.sampling import Sampling
from anabranch.prompts import Prompt
from anabranch.serving.recordings.format import Chunk, Trace
from anabranch.serving.recordings.problems import Problem

LEAST_LOGPROB = -100.0
"""In nats. Servers write minus infinity, or the least number there is, for what they rule out; means must stay finite."""
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A trace that is to be recorded: the sample of this number of a problem."""

    problem: Problem
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How traces are sampled.

    Attributes:
        prompt: a text with one variable, `problem`.
        concurrency: traces at the same time.
        top_logprobs: candidates for each token; 0 records no confidences.
        give_up_after: failures in a row at which the rest is left.
    """

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    model: str | None = None
    concurrency: int = 8
    top_logprobs: int = 0
    give_up_after: int = 10

    def sampling_of(self, wanted: Wanted) -> Sampling:
        """The sampling of one trace: a seed of its own, the same one whenever it is asked for."""
        seed = self.sampling.seed
        if seed is None:
            return self.sampling
        digest = hashlib.sha256(f"{seed} {wanted.problem.id} {wanted.sample}".encode()).digest()
        return self.sampling.but(seed=int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF)


def missing(problems: Sequence[Problem], samples: int, recorded: Collection[tuple[str, int]]) -> list[Wanted]:
    """What is not recorded yet, problem by problem."""
    return [
        Wanted(problem=problem, sample=sample)
        for problem in problems
        for sample in range(samples)
        if (problem.id, sample) not in recorded
    ]


async def record(
    orchestrator: Orchestrator,
    wanted: Sequence[Wanted],
    plan: Plan,
    *,
    keep: Callable[[Trace], None],
    failed: Callable[[Wanted, AnabranchError], None],
) -> None:
    """Sample these traces; hands each to `keep` once it has ended, each that failed to `failed`.

    Raises:
        ConfigurationError: the backend cannot do what the plan needs.
        BackendError: so many calls in a row failed that the rest was left.
    """
    queue, row = iter(wanted), _Row(most=plan.give_up_after)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.concurrency, len(wanted))):
                group.create_task(_work(orchestrator, queue, plan, keep, failed, row))
    except* AnabranchError as errors:
        raise _first(errors) from None


@dataclass(slots=True, kw_only=True)
class _Row:
    """Failures without a success in between."""

    most: int
    length: int = 0


async def _work(
    orchestrator: Orchestrator,
    queue: Iterator[Wanted],
    plan: Plan,
    keep: Callable[[Trace], None],
    failed: Callable[[Wanted, AnabranchError], None],
    row: _Row,
) -> None:
    for wanted in queue:
        try:
            trace = await sample(orchestrator, wanted, plan)
        except ConfigurationError:
            raise
        except AnabranchError as error:
            failed(wanted, error)
            row.length += 1
            if row.length >= row.most and isinstance(error, BackendError):
                raise
        else:
            row.length = 0
            keep(trace)


async def sample(orchestrator: Orchestrator, wanted: Wanted, plan: Plan) -> Trace:
    """One trace of one problem. Raises AnabranchError."""
    messages = [message.to_wire() for message in plan.prompt.render(problem=wanted.problem.problem)]
    sampling, recorder = plan.sampling_of(wanted), _Recorder(plan.top_logprobs)
    await orchestrator.ask(
        messages,
        strategy=recorder,
        model=plan.model,
        sampling=sampling,
        max_tokens=plan.max_tokens,
    )
    generation = recorder.generation
    assert generation is not None
    facts: dict[str, Any] = {"answer": wanted.problem.answer} if wanted.problem.answer is not None else {}
    if plan.top_logprobs:
        facts["top_logprobs"] = plan.top_logprobs
    return Trace(
        id=wanted.problem.id,
        problem=wanted.problem.problem,
        messages=tuple(messages),
        sample=wanted.sample,
        sampling=_settings(sampling, plan.max_tokens),
        **facts,
        **_written(generation),
        chunks=tuple(recorder.chunks),
    )


class _Recorder:
    """A strategy: plain decoding that notes each piece when it comes."""

    name = "record"

    def __init__(self, top_logprobs: int) -> None:
        self._top = top_logprobs
        self.generation: Generation | None = None
        self.chunks: list[Chunk] = []

    async def __call__(self, run: Run) -> None:
        live = run.generate(run.question, label="trace", max_tokens=run.max_tokens, top_logprobs=self._top)
        async for delta in live:
            if delta.text or delta.reasoning or delta.tokens:
                self.chunks.append(chunk_of(delta, run.state.now() - (live.record.started_at or 0.0)))
        self.generation = await live
        run.finish(self.generation)


def chunk_of(delta: Delta, seconds: float) -> Chunk:
    """A piece of a stream as it is recorded."""
    facts: dict[str, Any] = {name: text for name in ("text", "reasoning") if (text := getattr(delta, name))}
    if delta.logprobs:
        facts["logprobs"] = tuple(_finite(entry.logprob) for entry in delta.logprobs)
        if all(entry.top for entry in delta.logprobs):
            facts["confidences"] = tuple(confidence(entry) for entry in delta.logprobs)
    tokens = max(delta.tokens, len(delta.logprobs))
    return Chunk(tokens=tokens, seconds=round(max(0.0, seconds), _DIGITS), **facts)


def confidence(entry: TokenLogprob) -> float:
    """Minus the mean log-probability of the candidates, in nats (DeepConf, arXiv 2508.15260, section 2)."""
    return round(-sum(_finite(logprob) for _, logprob in entry.top) / len(entry.top), _DIGITS)


def _finite(logprob: float) -> float:
    return round(max(logprob, LEAST_LOGPROB), _DIGITS)


def _written(generation: Generation) -> Mapping[str, Any]:
    facts: dict[str, Any] = {"text": generation.text, "finish_reason": generation.finish_reason}
    if generation.reasoning:
        facts["reasoning"] = generation.reasoning
    return {**facts, "tokens": generation.usage.completion, "model": generation.model}


def _settings(sampling: Sampling, max_tokens: int | None) -> Mapping[str, Any]:
    cap = {"max_tokens": max_tokens} if max_tokens is not None else {}
    return {**sampling.given(), **cap}


def _first(errors: BaseExceptionGroup[AnabranchError]) -> AnabranchError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AnabranchError)
    return error
