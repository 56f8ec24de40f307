"""Output: the answer of one run while it is being written."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.orchestrator.answer import AnswerFinish, Figure
from anabranch.orchestrator.backend import FinishReason
from anabranch.orchestrator.events import AnswerDelta
from anabranch.orchestrator.feed import Feed, TextBuffer


class Output:
    """What a strategy has written, warned of and proposed so far."""

    def __init__(self, listener: Callable[[AnswerDelta], None] | None = None) -> None:
        self.pieces: Feed[AnswerDelta] = Feed()
        self.warnings: list[str] = []
        self.fell_back: str | None = None
        self.proposal: str | None = None
        self.figures: dict[str, Figure] = {}
        self.finish_reason: AnswerFinish = "stop"
        self.first_token_s: float | None = None
        self._listener = listener
        self._written = TextBuffer()

    def emit(self, text: str, reasoning: str, t: float) -> None:
        """Add a piece."""
        if not text and not reasoning:
            return
        if self.first_token_s is None and text.strip():
            self.first_token_s = t
        piece = AnswerDelta(t=t, text=text, reasoning=reasoning)
        self._written.add(text)
        self.pieces.append(piece)
        if self._listener is not None:
            self._listener(piece)

    def finish(self, reason: FinishReason) -> None:
        """Say how the answer ends."""
        self.finish_reason = reason

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._written.text

    @property
    def reasoning(self) -> str:
        """The answer's reasoning so far."""
        return "".join(piece.reasoning for piece in self.pieces.items)
