"""From the chunks of a `/generate` stream to `Delta`s. Pure: no I/O, one reader for one reply.

Text and token ids are let go of together: whatever may still turn out to be the beginning of a stop string or a tag,
or half a character, is held back with its ids.

Invariant: after each delta, the raw text so far (answer, reasoning and tags) is what the ids so far decode to; at the
end, with `End.tail`. Half a character at the very end is the exception: it belongs to whoever continues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.orchestrator.backend import Delta, End, FinishReason, SpecFigures, TokenLogprob, TokenUsage
from anabranch.orchestrator.errors import BackendError, BackendUnavailable, MalformedResponse, error_for_status
from anabranch.serving.backends._http import error_from_object
from anabranch.serving.backends.sglang.thinking import Splitter, overlap

HALF = "\ufffd"
"""What a decoder writes for a character whose bytes are not all there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in a chunk. `finish` is the server's finish reason, on the last one."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Mapping[str, Any] | None
    meta: Mapping[str, Any]


class Unroller:
    """Chunks to pieces. As a rule a chunk carries all there is so far, so that of several only the last counts.

    Chunks that came together become one piece: who is behind catches up.
    """

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental
        self._chars = self._ids = self._logprobs = 0

    def feed(self, payloads: Sequence[bytes]) -> list[Piece]:
        """The piece, if any, in a batch of chunks. Raises BackendError where an error stands in the place of a chunk."""
        pieces = [self._piece(payload) for payload in (payloads if self._incremental else payloads[-1:])]
        return [_joined(pieces)] if len(pieces) > 1 else pieces

    def _piece(self, payload: bytes) -> Piece:
        try:
            chunk = json.loads(payload.decode())  # bytes would have their encoding guessed
            if "error" in chunk:
                raise error_from_object(chunk)
            return self._news(chunk["text"], chunk["output_ids"], chunk["meta_info"])
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedResponse(f"a chunk of the stream makes no sense: {payload[:200]!r}") from error

    def _news(self, text: str, ids: list[int], meta: Mapping[str, Any]) -> Piece:
        written = meta.get("output_token_logprobs") or []
        tops = meta.get("output_top_logprobs") or []
        if not self._incremental:
            text, self._chars = text[self._chars :], max(self._chars, len(text))
            ids, self._ids = ids[self._ids :], len(ids)
            start, self._logprobs = self._logprobs, len(written)
            written, tops = written[start:], tops[start:]
        return Piece(text, tuple(ids), _token_logprobs(written, tops), meta.get("finish_reason"), meta)


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Pieces that follow each other, as one."""
    last = pieces[-1]
    return Piece(
        "".join([piece.text for piece in pieces]),
        tuple(id for piece in pieces for id in piece.ids),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
        last.finish,
        last.meta,
    )


class Reader:
    """Reads one reply, piece by piece.

    Args:
        stops: the stop strings of the call.
        splitter: tells reasoning from answer.
    """

    def __init__(self, stops: tuple[str, ...], splitter: Splitter, model: str | None = None) -> None:
        self._stops, self._splitter, self._model = stops, splitter, model
        self._text = ""
        self._held: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._raw: list[str] = []
        self._last: Piece | None = None
        self.ids: list[int] = []
        """All ids so far, those held back among them; at the end, without the token that only says so."""
        self.halved = False
        """The reply ends within a character."""

    @property
    def ended(self) -> bool:
        """Whether the last piece has come."""
        return self._last is not None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it: `finish` then needs the text of `ids`."""
        return self._last is not None and isinstance((self._last.finish or {}).get("matched"), str)

    def feed(self, piece: Piece) -> Delta | None:
        """What can be let go of. Raises BackendError where the server broke off."""
        ids = piece.ids
        if piece.finish is not None:
            _check(piece.finish)
            self._last = piece
            if ids and ids[-1] == piece.finish.get("matched"):
                ids = ids[:-1]
        self.ids += ids
        self._held += ids
        self._text += piece.text
        self._logprobs += piece.logprobs
        if self.ended or not piece.text or overlap(self._text, (*self._stops, *self._splitter.awaits)):
            return None
        return self._let_go()

    def finish(self, full: str | None = None) -> tuple[Delta, ...]:
        """What was held back, and the end.

        Args:
            full: the text of `ids`, where a stop string ended the reply.
        """
        assert self._last is not None
        finish = self._last.finish or {}
        matched, tail = None, ""
        if full is not None:
            matched, tail = self._cut(full, str(finish["matched"]))
        elif finish.get("type") == "length" and self._text.endswith(HALF):
            self._text, self.halved = self._text.rstrip(HALF), True
        reason: FinishReason = "length" if finish.get("type") == "length" else "stop"
        end = _end(self._last.meta, reason, matched=matched, tail=tail, model=self._model)
        rest = (self._let_go(),) if self._text or self._held else ()
        return (*rest, Delta(tokens=0, end=end))

    def _cut(self, full: str, matched: str) -> tuple[str, str]:
        """Hold back the text up to the first stop string; that string, and all from there on.

        The server cuts the text at the string that it noticed first, and leaves out the rest of the last token.
        """
        done = "".join(self._raw)
        found = [(at, -len(stop), stop) for stop in self._stops if (at := full.find(stop, len(done))) >= 0]
        if not found or not full.startswith(done):
            return matched, ""
        at, _, stop = min(found)
        self._text = full[len(done) : at]
        return stop, full[at:]

    def _let_go(self) -> Delta:
        text, ids, logprobs = self._text, tuple(self._held), tuple(self._logprobs)
        if self._stops:
            self._raw.append(text)
        self._text, self._held, self._logprobs = "", [], []
        reasoning, answer = self._splitter.feed(text)
        return Delta(text=answer, reasoning=reasoning, token_ids=ids, tokens=len(ids), logprobs=logprobs)


def _check(finish: Mapping[str, Any]) -> None:
    """Raises the error that a finish reason may stand for."""
    if finish.get("type") != "abort":
        return
    message = " ".join(str(finish.get("message") or "no reason given").split())
    status = finish.get("status_code")
    raise (
        error_for_status(int(status), message)
        if status
        else BackendUnavailable(f"the server gave up: {message}")
    )


def _end(
    meta: Mapping[str, Any], reason: FinishReason, *, matched: str | None, tail: str, model: str | None
) -> End:
    return End(
        finish_reason=reason,
        usage=usage(meta),
        matched=matched,
        tail=tail,
        spec=_spec(meta),
        queued_s=meta.get("queue_time"),
        model=model,
    )


def usage(meta: Mapping[str, Any]) -> TokenUsage:
    """What the server counted."""
    return TokenUsage(
        prompt=meta.get("prompt_tokens") or 0,
        cached=meta.get("cached_tokens") or 0,
        completion=meta.get("completion_tokens") or 0,
        reasoning=meta.get("reasoning_tokens") or 0,
    )


def _spec(meta: Mapping[str, Any]) -> SpecFigures | None:
    if not meta.get("spec_verify_ct"):
        return None
    return SpecFigures(
        verify_count=meta["spec_verify_ct"],
        accept_length=meta.get("spec_accept_length") or 0.0,
        accept_rate=meta.get("spec_accept_rate") or 0.0,
    )


def label_logprobs(labels: Sequence[str], answer: Any) -> tuple[Mapping[str, float], Mapping[str, Any]]:
    """Each label's log-probability from the answer to a scoring request, and that answer's figures."""
    try:
        meta = answer["meta_info"]
        _check(meta["finish_reason"])
        (at_end,) = meta["output_token_ids_logprobs"]
        return {label: scored[0] for label, scored in zip(labels, at_end, strict=True)}, meta
    except BackendError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedResponse(f"a score without log-probabilities: {str(answer)[:200]}") from error


def _token_logprobs(written: Sequence[Any], tops: Sequence[Any]) -> tuple[TokenLogprob, ...]:
    """SGLang gives `[logprob, id, text]` for each token written, and a list of them for its alternatives."""
    if not written:
        return ()
    padded = [*tops, *[None] * (len(written) - len(tops))]
    return tuple(
        TokenLogprob(
            token=text or "",
            logprob=logprob,
            top=tuple((other or "", value) for value, _, other in top or ()),
        )
        for (logprob, _, text), top in zip(written, padded, strict=False)
    )
