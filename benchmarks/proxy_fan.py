"""A strategy of N branches, each of so many tokens: what the proxy costs for it is the engine's and the backend's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from anabranch import Run
from anabranch.strategies.base import Strategy

NAME = "fan"


class Fan(Strategy):
    """The same question in every branch, side by side; the first is the answer, the others are of no use."""

    name: ClassVar[str] = NAME

    branches: int = 1
    tokens: int = 20

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        first, *others = [run.generate(run.question, max_tokens=self.tokens) for _ in range(self.branches)]
        run.finish(await run.relay(first))
        for each in others:
            run.discard(await each)


@contextmanager
def installed() -> Iterator[str]:
    """A value of `PYTHONPATH` with which `anabranch` finds this strategy: an installed package, for all it can tell."""
    with TemporaryDirectory(prefix="anabranch-fan-") as folder:
        package = Path(folder, "anabranch_fan-0.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: anabranch-fan\nVersion: 0\n")
        (package / "entry_points.txt").write_text(f"[anabranch.strategies]\n{NAME} = {__name__}:Fan\n")
        yield f"{folder}:{Path(__file__).parent}"
