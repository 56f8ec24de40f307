"""What LangChain's ChatOpenAI sees. Told as one JSON object; the test judges. Runs in that client's environment."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any, Literal

import openai
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel

task = json.loads(sys.argv[1])


class Person(BaseModel):
    """What the model is made to write."""

    name: Literal["Ann", "Bob"]
    tall: bool


def client(model: str, **more: Any) -> Any:
    """A client as a user would make it."""
    return ChatOpenAI(
        **{
            "base_url": task["base_url"],
            "api_key": "EMPTY",
            "model": model,
            "temperature": 0,
            "max_retries": 0,
            "stream_usage": True,
            "include_response_headers": True,
            **more,
        }
    )


def counts(usage: Any) -> dict[str, int] | None:
    """LangChain's names for the counts, put in OpenAI's."""
    return usage and {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}


async def whole(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One reply."""
    message = await client(model, max_tokens=tokens).ainvoke(prompt)
    return {
        "text": message.content,
        "finish_reason": message.response_metadata["finish_reason"],
        "usage": counts(message.usage_metadata),
        "headers": message.response_metadata["headers"],
    }


def with_tools(model: str) -> dict[str, Any]:
    """A reply to a request that has tools in it."""
    bound = client(model, max_tokens=task["plain_tokens"]).bind_tools([Person])
    message = bound.invoke(task["plain_prompt"])
    return {"text": message.content, "headers": message.response_metadata["headers"]}


async def streamed(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One reply, as it comes."""
    texts, finish_reason, usage = [], None, None
    async for chunk in client(model, max_tokens=tokens).astream(prompt):
        if chunk.content:
            texts.append(chunk.content)
        finish_reason = chunk.response_metadata.get("finish_reason") or finish_reason
        usage = counts(chunk.usage_metadata) or usage
    return {"text": "".join(texts), "chunks": len(texts), "finish_reason": finish_reason, "usage": usage}


def unknown(model: str) -> dict[str, Any] | None:
    """What an unknown strategy gives."""
    try:
        client(model, extra_body={"anabranch": {"strategy": "nonsense"}}).invoke(task["plain_prompt"])
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
        "version": version("langchain-openai"),
        "plain": await whole(task["model"], task["plain_prompt"], task["plain_tokens"]),
        "plain_stream": await streamed(task["model"], task["plain_prompt"], task["plain_tokens"]),
    }
    if strategy := task["strategy_model"]:
        asked_for = (strategy, task["list_prompt"], task["list_tokens"])
        async with asyncio.TaskGroup() as tasks:
            at_once = tasks.create_task(whole(*asked_for)), tasks.create_task(streamed(*asked_for))
        seen["strategy"], seen["strategy_stream"] = (each.result() for each in at_once)
        structured = client(strategy, max_tokens=64).with_structured_output(Person, method="json_schema")
        seen["parsed"] = structured.invoke(task["json_prompt"]).model_dump()
        seen["tools"] = with_tools(strategy)
        seen["unknown"] = unknown(task["model"])
    sys.stdout.write(json.dumps(seen) + "\n")


asyncio.run(main())
