"""Failure policies: what becomes of a fan-out when some of its branches fail. A value, handed to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from anabranch.orchestrator.errors import AnabranchError, InvalidParameter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a fan-out may go on without some of its branches, and when it has had enough.

    Attributes:
        at_least: how many must succeed; None means all, and the first failure stops the others.
        enough: stop the rest once so many have succeeded; None waits for all.
        tolerates: errors that count as the loss of a branch; any other is a bug, and is raised. Name here what
            tools of yours raise.
    """

    at_least: int | None = None
    enough: int | None = None
    tolerates: tuple[type[Exception], ...] = (AnabranchError,)

    def __post_init__(self) -> None:
        if self.enough is not None and (self.at_least or 0) > self.enough:
            raise InvalidParameter("policy", f"stops at {self.enough} successes but wants {self.at_least}")

    def hopeless(self, *, failed: int, total: int) -> bool:
        """Whether too many have failed already for enough to succeed."""
        return self.at_least is not None and total - failed < self.at_least

    @classmethod
    def fail_fast(cls) -> Policy:
        """The first failure stops the others and is raised."""
        return cls()

    @classmethod
    def tolerate(cls, at_least: int = 1) -> Policy:
        """Failures become warnings while at least this many succeed."""
        return cls(at_least=at_least)

    @classmethod
    def quorum(cls, count: int) -> Policy:
        """The first `count` successes are enough: the rest is stopped."""
        if count < 1:
            raise InvalidParameter("quorum", f"must be at least 1, got {count}")
        return cls(at_least=count, enough=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T]):
    """What became of one branch of a fan-out.

    Attributes:
        state: `stopped` when the others were enough before it ended; `skipped` when a node that it needs failed.
        value: what it gave, when it is `done`.
        error: what it failed of, or why it was skipped.
    """

    index: int
    state: Literal["done", "failed", "stopped", "skipped"] = "stopped"
    value: T | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.state == "done"
