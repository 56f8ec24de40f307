"""What OpenAI's client for Python has besides: helpers, parameters, the Responses API, and leaving early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from clients.asking import LIST, LIST_TOKENS, PLAIN, PLAIN_TOKENS, check_figures, check_points
from clients.conftest import Proxy
from clients.openai_calls import check_chunks, chunks_of, figures_of, listing, plain

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


def test_the_streaming_helper(proxy: Proxy, client: OpenAI) -> None:
    """`.stream()` puts the pieces of a strategy's answer together again."""
    with client.chat.completions.stream(**listing(proxy)) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 5
    assert "".join(deltas) == final.choices[0].message.content
    check_points(final.choices[0].message.content or "")


def test_parameters_and_budget_in_the_body(proxy: Proxy, client: OpenAI) -> None:
    """`extra_body` names the strategy, its parameters and its budget; the model's name stays as it is."""
    asked = {
        "strategy": "skeleton",
        "params": {"max_points": 2, "point_tokens": 12},
        "budget": {"tokens": 600},
    }
    request = listing(proxy, model=proxy.model, max_tokens=None, extra_body={"anabranch": asked})
    reply = client.chat.completions.create(**request)
    figures = figures_of(reply)
    check_figures(figures)
    assert figures["usage"]["branches"] == 3
    assert figures["finish_reason"] == "length"
    assert reply.choices[0].finish_reason == "length"


def test_a_strategy_in_a_header(proxy: Proxy, client: OpenAI) -> None:
    """`X-Anabranch-Strategy` chooses, too."""
    raw = client.chat.completions.with_raw_response.create(
        **plain(proxy), extra_headers={"X-Anabranch-Strategy": "sequential"}
    )
    assert raw.headers["x-anabranch-strategy"] == "sequential"
    assert figures_of(raw.parse())["usage"]["branches"] == 1


async def test_progress_as_reasoning(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """Where the client asks for it, it reads what the branches do as reasoning, before the answer and beside it."""
    request = listing(proxy, extra_body={"anabranch": {"progress": True}})
    chunks = await chunks_of(aclient, request)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    kinds = ["content" if delta.content else "reasoning" for delta in deltas if _said(delta)]
    assert kinds[0] == "reasoning"
    assert "content" in kinds
    check_points(check_chunks(chunks))


def _said(delta: Any) -> bool:
    return bool(delta.content or (delta.model_extra or {}).get("reasoning_content"))


def test_several_choices(proxy: Proxy, client: OpenAI) -> None:
    """`n` gives that many answers, each a run of its own."""
    request = plain(proxy, model=f"{proxy.model}@sequential", n=2, temperature=1.0, seed=1)
    reply = client.chat.completions.create(**request)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert all(choice.message.content for choice in reply.choices)
    assert len({run["run_id"] for run in figures_of(reply)["runs"]}) == 2


# The Responses API


@pytest.mark.parametrize("strategy", [False, True], ids=["plain", "skeleton"])
def test_a_response(proxy: Proxy, client: OpenAI, strategy: bool) -> None:
    """The Responses API answers, whole."""
    response = client.responses.create(
        model=proxy.strategy_model if strategy else proxy.model,
        input=LIST,
        max_output_tokens=LIST_TOKENS if strategy else PLAIN_TOKENS,
        temperature=0,
    )
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens > 0
    if strategy:
        check_points(response.output_text)
        check_figures((response.model_extra or {})["anabranch"])


async def test_a_plain_response_streamed(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """The server's own events pass through, up to the one that ends the response."""
    stream = await aclient.responses.create(
        model=proxy.model, input=PLAIN, max_output_tokens=PLAIN_TOKENS, temperature=0, stream=True
    )
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 5
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


async def test_a_response_by_a_strategy_streamed(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """The client's helper puts the pieces together to what the last event says."""
    # The helper wants a response that was not cut short: room for both points.
    async with aclient.responses.stream(
        model=proxy.strategy_model,
        input=LIST,
        max_output_tokens=2 * LIST_TOKENS,
        temperature=0,
        extra_body={"anabranch": {"params": {"max_points": 2}}},
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert len(deltas) > 5
    assert "".join(deltas) == final.output_text
    check_points(final.output_text)


# Leaving


async def state_of(aclient: AsyncOpenAI, request_id: str, *unwanted: str) -> str:
    """What became of a request's run, once it is none of these."""
    for _ in range(300):
        listed: Any = await aclient.get("/anabranch/runs", cast_to=object)
        state = next((run["state"] for run in listed["data"] if run["request_id"] == request_id), "none")
        if state not in unwanted:
            return str(state)
        await asyncio.sleep(0.1)
    pytest.fail(f"still {state}")


async def test_leaving_a_stream(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """A stream that is closed before its end stops its run."""
    request = listing(proxy, max_tokens=400, extra_headers={"X-Request-Id": "leaving-a-stream"})
    stream = await aclient.chat.completions.create(**request, stream=True)
    async for _ in stream:
        break
    await stream.close()
    assert await state_of(aclient, "leaving-a-stream", "running") == "stopped"


async def test_leaving_a_request(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """A request that is cancelled while it is answered stops its run, though nothing is streamed."""
    request = listing(proxy, max_tokens=400, extra_headers={"X-Request-Id": "leaving-a-request"})
    asked = asyncio.create_task(aclient.chat.completions.create(**request))
    assert await state_of(aclient, "leaving-a-request", "none") == "running"
    asked.cancel()
    assert await state_of(aclient, "leaving-a-request", "running") == "stopped"
