"""The Responses API by a strategy, for text: from the request to chat messages, and from the answer to the wire. Pure.

What it keeps on the server (`previous_response_id`, `conversation`, background work) and what is more than text is the
model server's: `beyond` finds it. Reasoning is not part of the output.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.budget import Budget
from anabranch.orchestrator.orchestrator import AskArguments
from anabranch.orchestrator.sampling import Sampling
from anabranch.orchestrator.strategy import Strategy
from anabranch.serving.proxy.chat import extension
from anabranch.serving.proxy.choice import EXTENSION
from anabranch.serving.proxy.errors import ProxyError, bad_request
from anabranch.serving.proxy.runs import Runs
from anabranch.serving.proxy.sse import KEEP_ALIVE, event

_TEXT_PARTS = ("input_text", "output_text", "text")


class ResponsesRequest(BaseModel):
    """A Responses request, as far as the proxy must understand it. A null counts as left out."""

    model_config = ConfigDict(extra="allow")

    input: str | list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    top_logprobs: int | None = None
    metadata: dict[str, Any] | None = None

    @property
    def effort(self) -> object:
        """How much the model is to reason."""
        return (self.reasoning or {}).get("effort")

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages."""
        instructed = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            return [*instructed, {"role": "user", "content": self.input}]
        return [*instructed, *({"role": item["role"], "content": _text_of(item)} for item in self.input)]

    def arguments(self, strategy: Strategy, budget: Budget, model: str | None) -> AskArguments:
        """What `Orchestrator.ask` gets."""
        extra = {"reasoning_effort": self.effort} if self.effort is not None else {}
        return AskArguments(
            strategy=strategy,
            model=model,
            budget=budget,
            sampling=Sampling(temperature=self.temperature, top_p=self.top_p, extra=extra),
            max_tokens=self.max_output_tokens,
        )


def beyond(request: ResponsesRequest, strategy: Strategy) -> str | None:
    """What a request wants that only the model server's own Responses API may do, or None."""
    form = (request.text or {}).get("format") or {}
    wanted = {
        "tools": bool(request.tools),
        "previous_response_id": request.previous_response_id is not None,
        "conversation": request.conversation is not None,
        "background": bool(request.background),
        "text.format": form.get("type", "text") != "text",
        "top_logprobs": bool(request.top_logprobs),
        "input other than text": isinstance(request.input, list) and not all(map(_is_text, request.input)),
    }
    unmet = [name for name, asked in wanted.items() if asked]
    return f"{strategy.name} does not honour {', '.join(unmet)}" if unmet else None


def _is_text(item: Mapping[str, Any]) -> bool:
    if item.get("type", "message") != "message" or not isinstance(item.get("role"), str):
        return False
    content = item.get("content")
    return isinstance(content, str) or (
        isinstance(content, list)
        and all(isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS for part in content)
    )


def _text_of(item: Mapping[str, Any]) -> str:
    content = item["content"]
    if isinstance(content, str):
        return content
    if not all(isinstance(part.get("text"), str) for part in content):
        raise bad_request("input: a text part has no text", param="input")
    return "".join(part["text"] for part in content)


class Responses:
    """The wire form of one response."""

    def __init__(self, request: ResponsesRequest, runs: Runs, model: str) -> None:
        self._request, self._runs, self._model = request, runs, model
        self._id, self._item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created, self._number = int(time.time()), -1

    async def response(self) -> dict[str, Any]:
        """The whole response."""
        while not self._runs.done:
            await self._runs.next()
        return self._finished(self._runs.finished[0])

    async def frames(self, keep_alive_s: float) -> AsyncGenerator[bytes]:
        """The response as events, each piece of its text as it is written."""
        begun = False
        while not self._runs.done:
            piece = await self._runs.next(keep_alive_s)
            if piece is None:
                yield KEEP_ALIVE
                continue
            if not begun:
                begun = True
                yield self._opening()
            if piece.text:
                yield self._text_event("delta", delta=piece.text, logprobs=[])
        yield self._closing(self._runs.finished[0])

    def failed(self, problem: ProxyError) -> bytes:
        """The event for an error in mid-stream."""
        said = problem.envelope()["error"]
        return self._event("error", code=said.get("code"), message=said["message"], param=said.get("param"))

    def _opening(self) -> bytes:
        response = self._body("in_progress", [])
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event(
                    "response.output_item.added", output_index=0, item=self._message("", "in_progress")
                ),
                self._event(
                    "response.content_part.added",
                    item_id=self._item,
                    output_index=0,
                    content_index=0,
                    part=_part(""),
                ),
            )
        )

    def _closing(self, answer: Answer) -> bytes:
        whole = self._finished(answer)
        return b"".join(
            (
                self._text_event("done", text=answer.text, logprobs=[]),
                self._event(
                    "response.content_part.done",
                    item_id=self._item,
                    output_index=0,
                    content_index=0,
                    part=_part(answer.text),
                ),
                self._event("response.output_item.done", output_index=0, item=whole["output"][0]),
                self._event(f"response.{whole['status']}", response=whole),
            )
        )

    def _text_event(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        return self._event(f"response.output_text.{kind}", **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, name=kind)

    def _finished(self, answer: Answer) -> dict[str, Any]:
        status = "completed" if answer.complete else "incomplete"
        usage = self._runs.usage
        return {
            **self._body(status, [self._message(answer.text, status)]),
            "incomplete_details": None if answer.complete else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.completion,
            },
            EXTENSION: extension([answer], usage),
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [_part(text)] if text or status != "in_progress" else []
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _body(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": request.effort, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
