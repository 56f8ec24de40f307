"""Stop strings, looked for on our side, for servers that do not say which one ended a reply. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StopScanner:
    """Cuts a text that arrives in pieces before the first stop string.

    Invariant: what was let through never holds a stop string, nor the beginning of one that may still be completed.
    """

    stops: tuple[str, ...]
    matched: str | None = None
    _held: str = field(default="")

    def feed(self, text: str) -> str:
        """The part of the text so far that is certain to be kept; `matched` is set when a stop string came."""
        text = self._held + text
        found = [(at, -len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)  # the earliest, and of those the longest
            self._held = ""
            return text[:at]
        keep = len(text) - max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[keep:]
        return text[:keep]

    def rest(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
