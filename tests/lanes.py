"""Jobs for a lane under test, and a sink that keeps what it is told."""

from __future__ import annotations

import asyncio
import uuid

from anabranch.orchestrator.backend import Call, Capabilities, Delta
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import (
    BackendError,
)
from anabranch.orchestrator.scheduler import Job, Lane


class Record:
    """A sink that keeps what it is told."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.text = ""
        self.attempts: list[int] = []
        self.delays: list[float] = []

    def ready(self, capabilities: Capabilities) -> Call:
        return self._call

    def started(self, attempt: int) -> None:
        self.attempts.append(attempt)

    def feed(self, delta: Delta) -> None:
        self.text += delta.text

    def retrying(self, attempt: int, error: BackendError, delay_s: float) -> None:
        self.delays.append(delay_s)

    @property
    def wrote(self) -> bool:
        return bool(self.text)


def job(run: str = "run", *, question: str = "q", priority: float = 0.0) -> Job:
    call = Call(rid=uuid.uuid4().hex, branch=Branch.of(question))
    return Job(sink=Record(call), run=run, priority=priority)


async def perform_all(lane: Lane, jobs: list[Job]) -> list[BaseException | None]:
    """Run all, side by side; the error of each."""
    errors: list[BaseException | None] = [None] * len(jobs)

    async def one(index: int) -> None:
        try:
            await lane.perform(jobs[index])
        except BackendError as error:
            errors[index] = error

    async with asyncio.TaskGroup() as group:
        for index in range(len(jobs)):
            group.create_task(one(index))
    return errors
