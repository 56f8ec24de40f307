"""What OpenAI's client for Python sees of that which is not done as asked: fallbacks, and errors."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from clients.asking import JSON, PLAIN_TOKENS, TOOL
from clients.conftest import Proxy
from clients.openai_calls import listing, plain

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


class Person(BaseModel):
    """What the model is made to write."""

    name: Literal["Ann", "Bob"]
    tall: bool


# What a strategy does not honour


def test_tools_fall_back(proxy: Proxy, client: OpenAI) -> None:
    """With tools the server itself answers, plainly, and the headers say so and why."""
    raw = client.chat.completions.with_raw_response.create(
        **listing(proxy, tools=[TOOL], max_tokens=PLAIN_TOKENS)
    )
    reply: ChatCompletion = raw.parse()
    message = reply.choices[0].message
    assert message.content or message.tool_calls
    assert raw.headers["x-anabranch-strategy"] == "sequential"
    assert "tools" in raw.headers["x-anabranch-fell-back"]


def test_a_history_with_tools_falls_back(proxy: Proxy, client: OpenAI) -> None:
    """A conversation with tool calls and their results is passed on as it is."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is sunny."},
    ]
    raw = client.chat.completions.with_raw_response.create(
        **listing(proxy, messages=messages, max_tokens=PLAIN_TOKENS)
    )
    assert raw.parse().choices[0].message.content
    assert "tool_history" in raw.headers["x-anabranch-fell-back"]


def test_log_probabilities_fall_back(proxy: Proxy, client: OpenAI) -> None:
    """Asked for log probabilities, the reply has them."""
    raw = client.chat.completions.with_raw_response.create(
        **listing(proxy, max_tokens=4, logprobs=True, top_logprobs=2)
    )
    logprobs = raw.parse().choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.content or []) >= 1
    assert "logprobs" in raw.headers["x-anabranch-fell-back"]


# SGLang's replies have a `metadata` that is not as the client's class says; the client warns when it writes it out.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("strategy", [False, True], ids=["plain", "skeleton"])
def test_structured_output(proxy: Proxy, client: OpenAI, strategy: bool) -> None:
    """`.parse()` gives an object of the class that was asked for."""
    completion = client.chat.completions.parse(
        model=proxy.strategy_model if strategy else proxy.model,
        messages=[{"role": "user", "content": JSON}],
        response_format=Person,
        max_tokens=64,
        temperature=0,
    )
    assert isinstance(completion.choices[0].message.parsed, Person)


# Errors


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_unknown_strategy(proxy: Proxy, client: OpenAI, stream: bool) -> None:
    """It is a BadRequestError with a list of those that there are, streamed or not, wherever it was named."""
    for changes in (
        {"model": f"{proxy.model}@nonsense"},
        {"extra_body": {"anabranch": {"strategy": "nonsense"}}},
        {"extra_headers": {"X-Anabranch-Strategy": "nonsense"}},
    ):
        with pytest.raises(openai.BadRequestError, match="skeleton") as caught:
            client.chat.completions.create(**plain(proxy, stream=stream, **changes))
        assert (caught.value.code, caught.value.param) == ("unknown_strategy", "strategy")
        assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("extension", "said"),
    [
        ({"strategy": "skeleton", "params": {"max_pionts": 3}}, "max_pionts"),
        ({"strategy": "skeleton", "params": {"max_points": 0}}, "max_points"),
        ({"strategy": "skeleton", "budget": {"tokns": 3}}, "tokns"),
        ({"stratgy": "skeleton"}, "stratgy"),
    ],
)
def test_a_wrong_parameter(proxy: Proxy, client: OpenAI, extension: dict[str, Any], said: str) -> None:
    """It is a BadRequestError that names the parameter."""
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        client.chat.completions.create(**plain(proxy, extra_body={"anabranch": extension}))
    assert said in (caught.value.param or "")


def test_no_messages(proxy: Proxy, client: OpenAI) -> None:
    """A request without messages is a BadRequestError."""
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**plain(proxy, messages=[]))


def test_an_unknown_path(proxy: Proxy, client: OpenAI) -> None:
    """What the model server does not have is a NotFoundError with a message, not a page of text."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.get("/no/such/thing", cast_to=object)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]
