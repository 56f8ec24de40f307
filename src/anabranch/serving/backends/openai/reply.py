"""From the chunks of a streamed chat completion to `Delta`s. Pure: no I/O, one reader for one reply.

It takes what servers really send: `reasoning` or `reasoning_content`, null and empty chunks, `finish_reason: ""`,
no usage, usage in a chunk of its own, a whole answer in one object, errors in the place of chunks.

Invariant: `finish` gives the one delta that has `end`, or raises when the reply was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.orchestrator.backend import Call, Delta, End, FinishReason, TokenLogprob, TokenUsage
from anabranch.orchestrator.errors import BackendUnavailable, MalformedResponse, UnsupportedCapability
from anabranch.serving.backends.openai.failures import error_in_stream
from anabranch.serving.backends.openai.labels import label_logprobs
from anabranch.serving.backends.stops import StopScanner

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""Anything else is the model's own end, as far as one can tell."""


class Reader:
    """Reads one reply."""

    def __init__(self, call: Call, *, scan_stops: bool) -> None:
        self._labels = call.labels
        self._wants_logprobs = bool(call.labels or call.top_logprobs)
        self._wrote = self._reported = False
        self._scanner = StopScanner(call.stop) if scan_stops and call.stop else None
        self._finish = ""
        self._matched: str | None = None
        self._model: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._scored: TokenLogprob | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found here, so that the rest of the reply is of no use."""
        return self._scanner is not None and self._scanner.matched is not None

    @property
    def lacks_logprobs(self) -> bool:
        """Whether log-probabilities were asked for, text came, and they did not."""
        return self._wants_logprobs and self._wrote and not self._reported

    @property
    def reports_cached(self) -> bool:
        """Whether the server told how much of the prompt came from its cache."""
        details = self._usage.get("prompt_tokens_details")
        return isinstance(details, dict) and details.get("cached_tokens") is not None

    def feed(self, chunk: object) -> Delta | None:
        """The piece of text in this chunk, if there is one. Raises MalformedResponse, or the error in its place."""
        try:
            return self._take(chunk) if isinstance(chunk, dict) else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MalformedResponse(f"a chunk makes no sense: {str(chunk)[:200]}") from error

    def _take(self, chunk: dict[str, Any]) -> Delta | None:
        if chunk.get("object") == "error" or chunk.get("error"):
            raise error_in_stream(chunk)
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        self._model = chunk.get("model") or self._model
        choices = chunk.get("choices")
        return self._read(choices[0]) if choices else None

    def _read(self, choice: dict[str, Any]) -> Delta | None:
        if reason := choice.get("finish_reason"):
            self._end(str(reason), choice)
        piece = choice.get("delta") or choice.get("message") or {}
        text = _text(piece.get("content")) or piece.get("refusal") or ""
        reasoning = piece.get("reasoning_content") or piece.get("reasoning") or ""
        logprobs = _logprobs(choice.get("logprobs"))
        if not (text or reasoning or logprobs):
            return None
        self._wrote, self._reported = True, self._reported or bool(logprobs)
        if self._labels:
            self._scored = self._scored or (logprobs[0] if logprobs else None)
            return None
        if self._scanner is not None:
            text = self._scanner.feed(text)
        return Delta(text=text, reasoning=reasoning, tokens=len(logprobs) or 1, logprobs=logprobs)

    def _end(self, reason: str, choice: dict[str, Any]) -> None:
        if reason in ("abort", "error"):
            raise BackendUnavailable(f"the server broke the call off (finish_reason {reason!r})")
        matched = choice.get("matched_stop", choice.get("stop_reason"))
        self._finish, self._matched = reason, matched if isinstance(matched, str) and matched else None

    def finish(self) -> Delta:
        """The last delta. Raises BackendUnavailable when the reply was cut in the middle."""
        if self._scanner is not None and self._scanner.matched is not None:
            self._finish, self._matched = "stop", self._scanner.matched
        elif not self._finish and not self._usage:
            raise BackendUnavailable("the reply ended in the middle")
        rest = self._scanner.rest() if self._scanner is not None else ""
        end = End(
            finish_reason=_FINISH.get(self._finish, "stop"),
            usage=self._token_usage(),
            matched=self._matched,
            tail=self._matched or "",
            label_logprobs=self._label_logprobs(),
            model=self._model,
        )
        return Delta(text=rest, tokens=0, end=end)

    def _token_usage(self) -> TokenUsage | None:
        """What the server counted: the usage object, or llama.cpp's timings where we closed the stream."""
        if self._usage:
            return token_usage(self._usage)
        if "predicted_n" not in self._timings:
            return None
        cached, computed, written = (self._timings.get(k) or 0 for k in ("cache_n", "prompt_n", "predicted_n"))
        return TokenUsage(prompt=cached + computed, cached=cached, completion=written)

    def _label_logprobs(self) -> Mapping[str, float] | None:
        if not self._labels:
            return None
        if self._scored is None:
            raise UnsupportedCapability("the server was asked for log-probabilities and reported none")
        return label_logprobs(self._labels, self._scored)


def token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """From OpenAI's usage object, with its details where a server sends them."""
    prompt_details = usage.get("prompt_tokens_details") or {}
    details = usage.get("completion_tokens_details") or {}
    return TokenUsage(
        prompt=usage.get("prompt_tokens") or 0,
        cached=prompt_details.get("cached_tokens") or 0,
        completion=usage.get("completion_tokens") or 0,
        reasoning=details.get("reasoning_tokens") or usage.get("reasoning_tokens") or 0,
    )


def _text(content: object) -> str:
    """The text of a content field: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if content is None:
        return ""
    raise MalformedResponse(f"content is neither text nor parts: {str(content)[:80]!r}")


def _logprobs(reported: object) -> tuple[TokenLogprob, ...]:
    tokens: Sequence[dict[str, Any]] = (reported.get("content") or ()) if isinstance(reported, dict) else ()
    return tuple(
        TokenLogprob(
            token=token["token"],
            logprob=token["logprob"],
            top=tuple((other["token"], other["logprob"]) for other in token.get("top_logprobs") or ()),
        )
        for token in tokens
    )
