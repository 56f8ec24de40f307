"""What llama.cpp's events say: a pure reader, events in, deltas and the end out.

Token ids come with the last delta only, all of them, because only then are they sure to be right: the stream leaves
out those that end within a character, and shows the end-of-turn token like any other. So a call that is stopped
early has text and no ids, and never ids that say something else than its text.

Invariant: the ids, where they are given, decode to the text of all deltas and `End.tail`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anabranch.orchestrator.backend import Call, Delta, End, FinishReason, TokenLogprob, TokenUsage
from anabranch.orchestrator.errors import MalformedResponse
from anabranch.serving.backends.local import constraints
from anabranch.serving.backends.local.slots import Tokens

Event = Mapping[str, Any]


class Reader:
    """Reads the events of one completion.

    Args:
        computed_before: tokens of the prompt that were computed for this very call before it, and not in it.
    """

    def __init__(self, call: Call, *, model: str, computed_before: int = 0) -> None:
        self._call, self._model, self._computed_before = call, model, computed_before
        self._known: dict[int, int] = {}
        self._parts: list[str] = []
        self._silent = False
        self._last: Event | None = None
        self.predicted = 0
        """Completion tokens so far, the one that ends the turn included."""

    @property
    def finished(self) -> bool:
        """Whether the last event came."""
        return self._last is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    def feed(self, event: Event) -> Delta | None:
        """The piece in an event; None for the last event, which has none."""
        if event.get("stop"):
            self._finish(event)
            return None
        try:
            return self._piece(event)
        except (KeyError, TypeError) as error:
            raise MalformedResponse(f"an event without {error}") from error

    def _piece(self, event: Event) -> Delta:
        fresh = event["tokens_predicted"] - self.predicted
        self.predicted += fresh
        for back, token in enumerate(reversed(event["tokens"]), start=1):
            self._known[self.predicted - back] = token
        text = event["content"]
        self._silent = not text
        if text:
            self._begin(text)
            self._parts.append(text)
        logprobs = tuple(_logprob(entry) for entry in event.get("completion_probabilities", ()))
        return Delta(text=text, tokens=fresh, logprobs=logprobs)

    def _begin(self, text: str) -> None:
        constraint = self._call.constraint
        if constraint is not None and not self._parts and not constraints.begins_well(constraint, text):
            raise constraints.not_in_force(constraint)

    def _finish(self, event: Event) -> None:
        self._last = event
        self.predicted = event["tokens_predicted"]
        constraint = self._call.constraint
        if (
            constraint is not None
            and self._stop_type == "eos"
            and not constraints.is_kept(constraint, self.text)
        ):
            raise constraints.not_in_force(constraint)

    # After the last event

    @property
    def written(self) -> int:
        """How many ids belong to the text: not the end-of-turn token, nor a character that was cut in half."""
        count = self.predicted - 1 if self._stop_type == "eos" else self.predicted
        while count and count - 1 not in self._known:
            count -= 1
        return count

    @property
    def gaps(self) -> bool:
        """Whether ids are missing, which the engine's slot still has."""
        return any(index not in self._known for index in range(self.written))

    @property
    def cut(self) -> bool:
        """Whether the ids hold more than the text that came: a stop string, or what looked like the start of one."""
        held_back = self._silent and bool(self._call.stop) and self._stop_type != "eos"
        return held_back or self._stop_type == "word"

    def fill(self, from_slot: Tokens) -> None:
        """Add what the slot says was written, unless it contradicts what is known."""
        found = dict(enumerate(from_slot[: self.written]))
        if all(self._known.get(index, token) == token for index, token in found.items()):
            self._known.update(found)

    def tokens(self) -> Tokens:
        """The ids; none where some are missing for good."""
        return () if self.gaps else tuple(self._known[index] for index in range(self.written))

    def end(self, decoded: str | None) -> Delta:
        """The last delta.

        Args:
            decoded: text of the ids; needed where `cut` says so.
        """
        tokens, rest = self.tokens(), ""
        if self.cut and tokens:
            rest = self._rest(decoded or "")
            if not rest:
                tokens = ()
        word = self._last.get("stopping_word") if self._last else None
        matched = word if self._stop_type == "word" else None
        tail = (rest or matched or "") if matched else ""
        end = End(
            finish_reason=self._finish_reason(),
            usage=self._usage(),
            matched=matched,
            tail=tail,
            model=self._model,
        )
        return Delta(text="" if matched else rest, token_ids=tokens, tokens=0, end=end)

    def _rest(self, decoded: str) -> str:
        """What the ids hold beyond the text that came; empty where the two do not fit together."""
        for whole in (decoded, " " + decoded):  # some tokenizers drop the first space of what they decode
            if whole.startswith(self.text):
                return whole[len(self.text) :]
        return ""

    @property
    def _stop_type(self) -> str:
        return str(self._last.get("stop_type")) if self._last else ""

    def _finish_reason(self) -> FinishReason:
        return "length" if self._stop_type == "limit" else "stop"

    def _usage(self) -> TokenUsage:
        last = self._last or {}
        cached = int(last.get("timings", {}).get("cache_n", 0)) - self._computed_before
        prompt = int(last.get("tokens_evaluated", 0))
        return TokenUsage(prompt=prompt, cached=max(0, cached), completion=self.predicted)


def _logprob(entry: Event) -> TokenLogprob:
    top = tuple((str(other["token"]), float(other["logprob"])) for other in entry["top_logprobs"])
    logprob = entry["logprob"]
    return TokenLogprob(
        token=str(entry["token"]), logprob=-math.inf if logprob is None else float(logprob), top=top
    )
