"""Plays the rest of a trace as deltas: cap, stop strings, counts, confidences. Pure: it waits for nothing.

Invariant: the ids of all deltas, where there are any, decode to the text of all deltas and `End.tail`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from anabranch.orchestrator.backend import Call, Delta, End, FinishReason, TokenLogprob, TokenUsage
from anabranch.serving.backends.replay.pool import Part
from anabranch.serving.backends.replay.tokens import Token
from anabranch.serving.backends.stops import StopScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A delta, and when it came, in the recording's seconds; None where that is unknown."""

    delta: Delta
    seconds: float | None = None


class Player:
    """Plays what is left of a trace for one call."""

    def __init__(self, part: Part, call: Call) -> None:
        self._part, self._call = part, call
        self._scanner = StopScanner(call.stop)
        self._written = 0
        self._texts: list[str] = []
        self._sent = 0

    def __iter__(self) -> Iterator[Played]:
        room = self._call.max_tokens
        taken = _within(self._part.tokens, room)
        numbered = list(zip_longest(taken, self._part.ids[: len(taken)]))
        for _, chunk in groupby(numbered, lambda each: each[0].chunk):
            yield self._piece(list(chunk))
            if self._scanner.matched is not None:
                yield Played(delta=self._end("stop"))
                return
        cut = len(taken) < len(self._part.tokens) or (
            room is not None and self._written + self._part.unseen > room
        )
        yield Played(delta=self._end("length" if cut else self._part.trace.finish_reason, whole=not cut))

    def _piece(self, chunk: Sequence[tuple[Token, int | None]]) -> Played:
        """The delta of a chunk, up to the token that completes a stop string."""
        used, text = 0, ""
        for token, _ in chunk:
            used += 1
            self._texts.append(token.text)
            text += self._scanner.feed(token.text)
            if self._scanner.matched is not None:
                break
        chunk = chunk[:used]
        tokens = sum(token.weight for token, _ in chunk)
        self._written += tokens
        self._sent += len(text)
        delta = Delta(
            text=text,
            reasoning="".join([token.reasoning for token, _ in chunk]),
            token_ids=tuple(id for token, id in chunk if token.weight and id is not None),
            tokens=tokens,
            logprobs=tuple(
                _logprob(token, self._call.top_logprobs)
                for token, _ in chunk
                if self._call.top_logprobs and (token.confidence is not None or token.logprob is not None)
            ),
        )
        return Played(delta=delta, seconds=chunk[0][0].seconds)

    def _end(self, reason: FinishReason, *, whole: bool = False) -> Delta:
        trace, matched = self._part.trace, self._scanner.matched
        held = self._scanner.rest()
        beyond = "".join(self._texts)[self._sent :] if self._part.ids else matched or ""
        completion = self._written + (self._part.unseen if whole else 0)
        end = End(
            finish_reason=reason,
            # where nobody counted the tokens, the engine is to say that its count is an estimate
            usage=TokenUsage(completion=completion) if trace.tokens is not None else None,
            matched=matched,
            tail=beyond if matched is not None else "",
            model=trace.model or None,
        )
        return Delta(text=held, tokens=0, end=end)


def _within(tokens: Sequence[Token], room: int | None) -> Sequence[Token]:
    """The first tokens, so many at most, with the text that came without one behind them."""
    if room is None:
        return tokens
    used = 0
    for place, token in enumerate(tokens):
        if used + token.weight > room:
            return tokens[:place]
        used += token.weight
    return tokens


def _logprob(token: Token, top: int) -> TokenLogprob:
    """As a server reports it: so many candidates whose mean is the recorded one; what is unknown is not a number."""
    confidence = token.confidence
    return TokenLogprob(
        token=token.text,
        logprob=token.logprob if token.logprob is not None else float("nan"),
        top=(("", -confidence),) * top if confidence is not None else (),
    )
