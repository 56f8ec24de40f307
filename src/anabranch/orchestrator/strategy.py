"""The contract between the engine and a strategy: an async callable that is handed a run.

    class Echo:
        name = "echo"

        async def __call__(self, run: Run) -> None:
            await run.relay(run.generate(run.question))

The strategy decides what to fork, keep, prune and join. It writes the answer with `run.emit` or `run.relay`, and
raises AnabranchError when it cannot give one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run


class Strategy(Protocol):
    """A policy: what to fork, keep, prune and join."""

    @property
    def name(self) -> str:
        """Its name in answers and on the command line."""
        ...

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        ...
