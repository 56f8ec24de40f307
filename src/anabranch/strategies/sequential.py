"""Plain decoding: one branch, from the question to the end of the answer. What every strategy is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from anabranch.strategies.base import Strategy

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run


class Sequential(Strategy):
    """One generation, relayed as it comes. It asks the backend for nothing special, and costs what the answer costs."""

    name: ClassVar[str] = "sequential"

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        live = run.generate(run.question, label="answer", max_tokens=run.max_tokens, stop=run.stop)
        run.finish(await run.relay(live))
