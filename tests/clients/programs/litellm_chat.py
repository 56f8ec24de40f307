"""What LiteLLM's library sees. Told as one JSON object; the test judges. Runs in that client's environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # type: ignore[import-not-found,unused-ignore]
import openai

task = json.loads(sys.argv[1])


def asked(model: str, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """The arguments of a call."""
    return {
        "model": f"openai/{model}",
        "api_base": task["base_url"],
        "api_key": "EMPTY",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "max_retries": 0,
        **more,
    }


async def whole(model: str, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """One reply."""
    reply = await litellm.acompletion(**asked(model, prompt, tokens, **more))
    return {
        "text": reply.choices[0].message.content,
        "finish_reason": reply.choices[0].finish_reason,
        "usage": reply.usage.model_dump(),
        "extra": getattr(reply, "anabranch", None),
        "headers": dict(reply._response_headers or {}),
    }


async def streamed(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One reply, as it comes."""
    texts, finish_reason, usage, extra = [], None, None, None
    stream = await litellm.acompletion(
        **asked(model, prompt, tokens, stream=True, stream_options={"include_usage": True})
    )
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                texts.append(choice.delta.content)
            finish_reason = choice.finish_reason or finish_reason
        usage = getattr(chunk, "usage", None) or usage
        extra = getattr(chunk, "anabranch", None) or extra
    return {
        "text": "".join(texts),
        "chunks": len(texts),
        "finish_reason": finish_reason,
        "usage": usage and usage.model_dump(),
        "extra": extra,
    }


def unknown(model: str) -> dict[str, Any] | None:
    """What an unknown strategy gives."""
    try:
        litellm.completion(
            **asked(model, task["plain_prompt"], 8, extra_body={"anabranch": {"strategy": "nonsense"}})
        )
    except openai.BadRequestError as error:
        return {
            "errors": [each.__name__ for each in type(error).__mro__],
            "status": error.status_code,
            "message": str(error),
        }
    return None


async def main() -> None:
    """All cases; on one event loop, to which the library's connections belong."""
    seen: dict[str, Any] = {
        "version": version("litellm"),
        "plain": await whole(task["model"], task["plain_prompt"], task["plain_tokens"]),
        "plain_stream": await streamed(task["model"], task["plain_prompt"], task["plain_tokens"]),
    }
    if strategy := task["strategy_model"]:
        asked_for = (strategy, task["list_prompt"], task["list_tokens"])
        async with asyncio.TaskGroup() as tasks:
            at_once = tasks.create_task(whole(*asked_for)), tasks.create_task(streamed(*asked_for))
        seen["strategy"], seen["strategy_stream"] = (each.result() for each in at_once)
        seen["tools"] = await whole(strategy, task["plain_prompt"], task["plain_tokens"], tools=[task["tool"]])
        seen["unknown"] = unknown(task["model"])
    sys.stdout.write(json.dumps(seen) + "\n")


asyncio.run(main())
