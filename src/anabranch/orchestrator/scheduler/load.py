"""Load: how busy a backend is, as its lane sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy a backend is with the calls of this process; what others ask of it is seen only in its limit.

    Attributes:
        in_flight: calls at the server.
        waiting: calls that wait for a slot.
        slots: calls that may be at the server at a time, at present.
    """

    in_flight: int
    waiting: int
    slots: int

    @property
    def share(self) -> float:
        """Calls over slots: 0 idle, 1 full, above 1 some wait."""
        return (self.in_flight + self.waiting) / self.slots
