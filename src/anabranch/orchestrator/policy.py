"""Failure policies: what becomes of a fan-out when some of its branches fail. A value, handed to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from anabranch.orchestrator.errors import InvalidParameter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a fan-out may go on without some of its branches, and when it has had enough.

    Attributes:
        at_least: how many must succeed; None means all, and the first failure stops the others.
        enough: stop the rest once so many have succeeded; None waits for all.
    """

    at_least: int | None = None
    enough: int | None = None

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
    """What became of one branch of a fan-out: a value, an error, or neither when it was stopped unfinished."""

    index: int
    value: T | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None and self.value is not None
