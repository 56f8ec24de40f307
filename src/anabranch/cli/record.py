"""`anabranch record`: several traces of each problem, into a file that `replay:` plays."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli import errors, options
from anabranch.cli.settings import configure
from anabranch.cli.signals import stopped_by_signals
from anabranch.cli.text import count

if TYPE_CHECKING:
    from anabranch.orchestrator.errors import AnabranchError
    from anabranch.serving.recordings import Trace, Writer
    from anabranch.serving.recordings.recorder import Plan, Wanted

PROMPT = "record/reason"


def record(
    problems: Annotated[
        Path, typer.Argument(metavar="PROBLEMS", help="JSON lines with id, problem and, where known, answer.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Where the traces go; .gz compresses.")
    ],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Traces of each problem.")] = 8,
    backend: options.Backend = None,
    model: options.Model = None,
    temperature: options.Temperature = 0.6,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of a trace.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Traces at the same time.")] = 8,
    top_logprobs: Annotated[
        int,
        typer.Option(
            "--top-logprobs", min=0, help="Candidates that a token's confidence is taken over; 0: none."
        ),
    ] = 20,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first problems.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed for sampling; each trace derives its own.")
    ] = None,
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="NAME", help="The prompt that a problem is put into.")
    ] = PROMPT,
) -> None:
    """Sample several traces of each problem into a file for replay:FILE.

    What the file holds already is not asked again: after a stop or a failure, the same command goes on.
    Exit code 1: traces failed and are missing.
    """
    with errors.told():
        from anabranch.orchestrator.sampling import Sampling
        from anabranch.prompts import load
        from anabranch.serving.recordings.problems import read_problems
        from anabranch.serving.recordings.recorder import Plan, missing

        plan = Plan(
            prompt=load(prompt),
            sampling=Sampling(temperature=temperature, seed=seed),
            max_tokens=max_tokens,
            model=model,
            concurrency=concurrency,
            top_logprobs=top_logprobs,
        )
        asked = list(islice(read_problems(problems, _warn), limit))
        wanted = missing(asked, samples, _recorded(out))
        progress = Progress(out=out, wanted=len(wanted), found=len(asked) * samples - len(wanted))
        raise typer.Exit(_run(backend, wanted, plan, progress))


@dataclass(kw_only=True)
class Progress:
    """How far it is, on standard error: a line that is rewritten on a terminal, else one at each tenth."""

    out: Path
    wanted: int
    found: int
    done: int = 0
    failed: int = 0
    tokens: int = 0

    def begin(self) -> None:
        """Say what there is to do."""
        there = f"; {self.out} has {self.found:,} already" if self.found else ""
        errors.tell(f"{count(self.wanted, 'trace')} to record{there}")

    def kept(self, trace: Trace) -> None:
        """A trace is in the file."""
        before = 10 * self.done // self.wanted
        self.done, self.tokens = self.done + 1, self.tokens + (trace.tokens or 0)
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[Kanabranch: {self}", nl=False, err=True)
        elif 10 * self.done // self.wanted > before:
            errors.tell(str(self))

    def lost(self, wanted: Wanted, error: AnabranchError) -> None:
        """A trace failed."""
        self.failed += 1
        self.end_line()
        _warn(f"trace {wanted.sample} of {wanted.problem.id} failed: {errors.with_fix(error)}")

    def end_line(self) -> None:
        """End a line that is being rewritten."""
        if sys.stderr.isatty() and self.done:
            typer.echo(err=True)

    def conclude(self) -> None:
        """Say what there is, and how to go on where something is missing."""
        self.end_line()
        if self.done + self.failed < self.wanted or self.failed:
            left = count(self.wanted - self.done, "trace")
            errors.tell(f"{self}; {left} missing in {self.out}: the same command again goes on from there")

    def __str__(self) -> str:
        return f"{self.done:,} of {count(self.wanted, 'trace')}, {count(self.tokens, 'token')}"


def _recorded(out: Path) -> set[tuple[str, int]]:
    from anabranch.serving.recordings import read

    return {(trace.id, trace.sample) for trace in read(out, told=_warn)} if out.exists() else set()


def _run(backend: str | None, wanted: Sequence[Wanted], plan: Plan, progress: Progress) -> int:
    from anabranch.serving.recordings import Writer

    if backend:
        configure(backend)
    progress.begin()
    with Writer(progress.out) as writer:
        try:
            asyncio.run(_record(backend, wanted, plan, progress, writer))
        finally:
            progress.conclude()
    return errors.FAILED if progress.failed else errors.OK


async def _record(
    backend: str | None, wanted: Sequence[Wanted], plan: Plan, progress: Progress, writer: Writer
) -> None:
    from anabranch.orchestrator.orchestrator import Orchestrator
    from anabranch.orchestrator.scheduler import Limits
    from anabranch.serving.recordings.recorder import record

    def keep(trace: Trace) -> None:
        writer.write(trace)
        progress.kept(trace)

    limits = Limits(start=plan.concurrency)
    async with stopped_by_signals(), Orchestrator(backend, limits=limits) as orchestrator:
        await record(orchestrator, wanted, plan, keep=keep, failed=progress.lost)


def _warn(message: str) -> None:
    errors.tell(message, "warning")
