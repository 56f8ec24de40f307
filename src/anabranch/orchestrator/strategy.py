"""The contract between the engine and a strategy: an async callable that is handed a run.

    class Echo:
        name = "echo"

        async def __call__(self, run: Run) -> None:
            await run.relay(run.generate(run.question))

The strategy decides what to fork, keep, prune and join. It writes the answer with `run.emit` or `run.relay`, and
raises AnabranchError when it cannot give one. A strategy that cannot do without a capability has an attribute
`requires`, such as `{"target": ("prefill",), "scorer": ("reward",)}`: the mismatch is then an error before the first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from anabranch.orchestrator.errors import UnsupportedCapability

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run
    from anabranch.orchestrator.state import Role


class Strategy(Protocol):
    """A policy: what to fork, keep, prune and join."""

    @property
    def name(self) -> str:
        """Its name in answers and on the command line."""
        ...

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        ...


async def check_requirements(strategy: Strategy, roles: Mapping[str, Role]) -> None:
    """Hold a strategy's `requires`, where it has one, against its backends: role -> names of capabilities or measures.

    Raises:
        UnsupportedCapability: a backend lacks one; nothing has been generated yet.
    """
    requires: Mapping[str, Iterable[str]] = getattr(strategy, "requires", {})
    for role, names in requires.items():
        lane = (roles.get(role) or roles["target"]).lane
        capabilities = await lane.capabilities()
        lacking = [name for name in names if not capabilities.has(name)]
        if lacking:
            raise UnsupportedCapability(
                f"strategy {strategy.name!r} needs {', '.join(lacking)} for its {role}; {lane.backend.name} has none"
            )
