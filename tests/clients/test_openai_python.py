"""OpenAI's own client for Python, sync and async, in front of every kind of server."""

from __future__ import annotations

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from clients.asking import PLAIN_TOKENS, check_figures, check_headers, check_points
from clients.conftest import Proxy
from clients.openai_calls import check_chunks, chunks_of, figures_of, listing, plain

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

ALL_SERVERS = pytest.mark.parametrize(
    "proxy",
    [
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("openai", marks=pytest.mark.sglang),
        pytest.param("local", marks=pytest.mark.llama),
        pytest.param("llama.cpp", marks=pytest.mark.llama),
    ],
    indirect=True,
    scope="session",
)


@ALL_SERVERS
def test_models(proxy: Proxy, client: OpenAI) -> None:
    """The server's model and the virtual one are listed and can be retrieved; another is not found."""
    names = [model.id for model in client.models.list()]
    assert {proxy.model, proxy.strategy_model} <= set(names)
    assert client.models.retrieve(proxy.strategy_model).id == proxy.strategy_model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


@ALL_SERVERS
def test_a_plain_request(proxy: Proxy, client: OpenAI) -> None:
    """A request that names no strategy gives the server's own reply, with nothing added."""
    raw = client.chat.completions.with_raw_response.create(
        **plain(proxy), extra_headers={"X-Request-Id": "req-1"}
    )
    reply: ChatCompletion = raw.parse()
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= PLAIN_TOKENS
    assert reply.model == proxy.model
    assert figures_of(reply) is None
    assert raw.headers["x-request-id"] == "req-1"


@ALL_SERVERS
async def test_a_plain_stream(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """A request that names no strategy is streamed as the server streams."""
    chunks = await chunks_of(aclient, plain(proxy))
    assert check_chunks(chunks)
    assert all(figures_of(chunk) is None for chunk in chunks)


@ALL_SERVERS
def test_a_strategy(proxy: Proxy, client: OpenAI) -> None:
    """A strategy gives an ordinary completion; its figures are in `model_extra` and in headers, and agree."""
    raw = client.chat.completions.with_raw_response.create(**listing(proxy))
    reply: ChatCompletion = raw.parse()
    check_points(reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.model == proxy.strategy_model
    figures = figures_of(reply)
    check_figures(figures)
    check_headers(raw.headers)
    assert raw.headers["x-anabranch-run-id"] == figures["run_id"]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == figures["usage"]["completion"]
    assert reply.usage.prompt_tokens == figures["usage"]["prompt"]


@ALL_SERVERS
async def test_a_strategy_streamed(proxy: Proxy, aclient: AsyncOpenAI) -> None:
    """A strategy is streamed as one reply; the figures are on the chunk that ends it, and nowhere else."""
    chunks = await chunks_of(aclient, listing(proxy))
    check_points(check_chunks(chunks))
    assert len({chunk.created for chunk in chunks}) == 1
    told = [chunk for chunk in chunks if figures_of(chunk) is not None]
    assert len(told) == 1
    assert told[0].choices[0].finish_reason
    check_figures(figures_of(told[0]))
