"""Chat completions by a strategy: from the request to the engine's arguments, and from its answer to the wire. Pure.

`max_tokens` and `stop` are the final answer's; sampling parameters, and keys that OpenAI's API does not know, go to
every branch. What a strategy does not honour is found by `beyond`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.orchestrator.answer import Answer, RunUsage
from anabranch.orchestrator.budget import Budget
from anabranch.orchestrator.orchestrator import AskArguments
from anabranch.orchestrator.sampling import Sampling
from anabranch.orchestrator.strategy import Strategy
from anabranch.serving.proxy.choice import EXTENSION
from anabranch.serving.proxy.errors import bad_request
from anabranch.serving.proxy.runs import Piece, Runs
from anabranch.serving.proxy.sse import DONE, KEEP_ALIVE, event

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_NOT_FOR_BRANCHES = frozenset((EXTENSION, "rid", "request_id"))
"""Ours; and ids of a call, which the engine gives each of its own: with one for all, all would be aborted with the first."""
_FINISH = {"budget": "length", "deadline": "length", "cancelled": "stop"}
"""What OpenAI's clients know, for what only the engine does."""


class StreamOptions(BaseModel):
    """What a client wants of a stream."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A chat completion request, as far as the proxy must understand it. A null counts as left out."""

    model_config = ConfigDict(extra="allow", strict=False)

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None

    @property
    def cap(self) -> int | None:
        """The most tokens of the answer."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> Sampling:
        """How tokens are to be drawn in every branch, unknown keys included."""
        extra = {
            name: value for name, value in (self.model_extra or {}).items() if name not in _NOT_FOR_BRANCHES
        }
        return Sampling(**{name: getattr(self, name) for name in _SAMPLING}, extra=extra)

    def arguments(self, strategy: Strategy, budget: Budget, model: str | None) -> AskArguments:
        """What `Orchestrator.ask` gets."""
        return AskArguments(
            strategy=strategy,
            model=model,
            budget=budget,
            sampling=self.sampling(),
            max_tokens=self.cap,
            stop=self.stops,
        )


def read(model: type[Any], body: Mapping[str, Any]) -> Any:
    """A request of this kind. Raises ProxyError that names the field."""
    try:
        return model(**{name: value for name, value in body.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise bad_request(f"{field}: {first['msg']}", param=field) from error


def beyond(request: ChatRequest, strategy: Strategy) -> str | None:
    """What a request wants that a strategy does not honour (`Strategy.honours`), or None."""
    honours: Iterable[str] = getattr(strategy, "honours", ())
    wanted = {
        "tools": bool(request.tools or request.functions),
        "logprobs": bool(request.logprobs or request.top_logprobs),
        "response_format": (request.response_format or {}).get("type", "text") != "text",
        "audio": bool(request.audio) or "audio" in (request.modalities or ()),
        "images": any(not _text_only(message) for message in request.messages),
        "tool_history": any(
            message.get("role") in ("tool", "function") or message.get("tool_calls")
            for message in request.messages
        ),
    }
    unmet = [name for name, asked in wanted.items() if asked and name not in honours]
    return f"{strategy.name} does not honour {', '.join(unmet)}" if unmet else None


def _text_only(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return True
    return all(isinstance(part, Mapping) and part.get("type") == "text" for part in content)


# The answer on the wire


class Chat:
    """The wire form of one request's answer: one id and one time for all of its parts."""

    def __init__(self, request: ChatRequest, runs: Runs, model: str) -> None:
        self._request, self._runs, self._model = request, runs, model
        self._id, self._created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self._opened: set[int] = set()

    async def completion(self) -> dict[str, Any]:
        """The whole answer."""
        while not self._runs.done:
            await self._runs.next()
        answers = self._runs.finished
        return {
            **self._head("chat.completion"),
            "choices": [_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage_fields(self._runs.usage),
            EXTENSION: extension(answers, self._runs.usage),
        }

    async def frames(self, keep_alive_s: float) -> AsyncGenerator[bytes]:
        """The answer as events, each piece as it is written."""
        while not self._runs.done:
            piece = await self._runs.next(keep_alive_s)
            if piece is None:
                yield KEEP_ALIVE
            else:
                yield self._opening(piece.index) + self._chunk(piece)
        if self._request.wants_usage:
            usage = {"choices": [], "usage": usage_fields(self._runs.usage)}
            yield event({**self._head("chat.completion.chunk"), **usage})
        yield DONE

    def _opening(self, index: int) -> bytes:
        """The first chunk of a choice says whose words follow."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        return self._event(index, {"role": "assistant", "content": ""})

    def _chunk(self, piece: Piece) -> bytes:
        if piece.answer is not None:
            about = extension([piece.answer], piece.answer.usage)
            return self._event(piece.index, {}, _finish_reason(piece.answer), {EXTENSION: about})
        delta = {"content": piece.text} if piece.text else {}
        return self._event(
            piece.index, delta | ({"reasoning_content": piece.reasoning} if piece.reasoning else {})
        )

    def _event(
        self,
        index: int,
        delta: Mapping[str, Any],
        finish_reason: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        body = {**self._head("chat.completion.chunk"), "choices": [choice], **(more or {})}
        if self._request.wants_usage:
            body["usage"] = None
        return event(body)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def usage_fields(usage: RunUsage) -> dict[str, Any]:
    """The tokens of all branches, in OpenAI's terms."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def extension(answers: list[Answer], usage: RunUsage) -> dict[str, Any]:
    """What OpenAI's API has no field for. With several choices, `runs` has one object for each."""
    each = [
        {name: value for name, value in answer.to_dict().items() if name not in _ELSEWHERE}
        for answer in answers
    ]
    if len(each) == 1:
        return each[0]
    return {"strategy": answers[0].strategy, "usage": usage.to_dict(), "runs": each}


_ELSEWHERE = ("text", "reasoning", "model")


def _choice(index: int, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    return {"index": index, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}


def _finish_reason(answer: Answer) -> str:
    return _FINISH.get(answer.finish_reason, answer.finish_reason)


def answer_headers(runs: Runs) -> dict[str, str]:
    """The figures of a whole answer as headers."""
    usage, answers = runs.usage, runs.finished
    headers = {
        "x-anabranch-strategy": answers[0].strategy,
        "x-anabranch-run-id": ",".join(answer.run_id for answer in answers),
        "x-anabranch-branches": str(usage.branches),
        "x-anabranch-work": str(usage.work),
        "x-anabranch-span": str(usage.span),
        "x-anabranch-wasted": str(usage.wasted),
        "x-anabranch-cached": str(usage.cached),
    }
    if answers[0].fell_back is not None:
        headers["x-anabranch-fell-back"] = answers[0].fell_back
    return headers
