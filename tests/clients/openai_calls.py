"""Requests as OpenAI's client for Python takes them, and what its replies have to look like."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clients.asking import LIST, LIST_TOKENS, PLAIN, PLAIN_TOKENS
from clients.conftest import Proxy


def plain(proxy: Proxy, **more: Any) -> dict[str, Any]:
    """A request that names no strategy."""
    messages = [{"role": "user", "content": PLAIN}]
    return {"model": proxy.model, "messages": messages, "max_tokens": PLAIN_TOKENS, "temperature": 0, **more}


def listing(proxy: Proxy, **more: Any) -> dict[str, Any]:
    """A request for a skeleton."""
    messages = [{"role": "user", "content": LIST}]
    return {
        "model": proxy.strategy_model,
        "messages": messages,
        "max_tokens": LIST_TOKENS,
        "temperature": 0,
        **more,
    }


async def chunks_of(aclient: AsyncOpenAI, request: dict[str, Any]) -> list[ChatCompletionChunk]:
    """All chunks of a stream that ends with its usage."""
    stream = await aclient.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    return [chunk async for chunk in stream]


def check_chunks(chunks: list[ChatCompletionChunk]) -> str:
    """A stream is one reply: one id, the role once and first, one end, then the usage alone. Its text."""
    assert len({(chunk.id, chunk.model) for chunk in chunks}) == 1
    *rest, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    choices = [choice for chunk in rest for choice in chunk.choices]
    assert [choice.delta.role for choice in choices if choice.delta.role] == ["assistant"]
    assert choices[0].delta.role == "assistant"
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert len(ends) == 1
    assert ends[0] in ("stop", "length")
    pieces = [choice.delta.content for choice in choices if choice.delta.content]
    assert len(pieces) > 5
    return "".join(pieces)


def figures_of(reply: ChatCompletion | ChatCompletionChunk) -> Any:
    """The `anabranch` object, as the client keeps it."""
    return (reply.model_extra or {}).get("anabranch")
