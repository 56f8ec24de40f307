"""How much at a time: bodies, requests under way, the queue behind them, time, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import aiohttp
import pytest

from proxy_server import Recorder, chat, child, leaving, serving
from upstream import Upstream, until
from upstream_forms import gated, silent
from upstream_replies import Ordinary, chat_events, saying

MODELS = ["stub", "stub@sequential", "stub@skeleton"]
models = pytest.mark.parametrize("model", MODELS)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/files"])
async def test_long_bodies(path: str, upstream: Upstream) -> None:
    """A body over the limit is a 413 in the envelope, and one at the limit is not."""
    async with serving(upstream.url, max_body=2_000) as proxy:
        short = json.dumps(chat(content="x" * 1_000, model="stub", input="x")).encode().ljust(2_000)
        assert (await proxy.ask(path, short)).status == 200
        upstream.requests.clear()
        answer = await proxy.ask(path, short + b" ")
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
    assert upstream.requests == []


async def test_long_bodies_without_a_length(upstream: Upstream) -> None:
    """A body that comes in pieces is refused when it has become too long, not after its end."""
    async with serving(upstream.url, max_body=2_000) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"1000\r\n" + b"x" * 4_096 + b"\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
    assert upstream.requests == []


async def test_a_declared_length_is_enough(upstream: Upstream) -> None:
    """A body that says it is too long is refused before it comes."""
    async with serving(upstream.url, max_body=2_000) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


@models
async def test_the_queue(model: str, upstream: Upstream) -> None:
    """So many at a time, so many wait in their order, and further ones get a 503 with `Retry-After` at once."""
    gate = asyncio.Event()
    events = list(chat_events({}, ["1. Some words\n", "2. More words\n"]))
    upstream.answer = gated(gate, [], events)
    async with serving(upstream.url, max_inflight=2, max_queued=1) as proxy:
        body = chat(model, stream=True)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(proxy.ask("/v1/chat/completions", body)) for _ in range(2)]
            await upstream.asked(2)
            asked.append(group.create_task(proxy.ask("/v1/chat/completions", body)))
            await asyncio.sleep(0.1)
            refused = await proxy.chat(model)
            assert refused.status == 503
            assert refused.error["code"] == "queue_full"
            assert refused.error["type"] == "overloaded_error"
            assert int(refused.headers["retry-after"]) >= 1
            assert len(upstream.requests) == 2
            assert (await proxy.ask("/health")).status == 200
            assert (await proxy.ask("/version")).status == 200
            gate.set()
        assert [each.result().status for each in asked] == [200] * 3
        assert (await proxy.chat(model)).status == 200


async def test_places_come_back(upstream: Upstream) -> None:
    """However a request ends, its place is free again; one that leaves the queue takes none."""
    upstream.answer = silent
    async with serving(upstream.url, max_inflight=1, max_queued=2, deadline_s=30) as proxy:
        for model in (*MODELS, "stub@nonsense"):
            for stream in (False, True):
                for _ in range(2):
                    await leaving(proxy.chat(model, stream=stream), after_s=0.1)
        waiting = asyncio.create_task(proxy.chat())
        second = asyncio.create_task(proxy.chat())
        await asyncio.sleep(0.1)
        second.cancel()
        waiting.cancel()
        await asyncio.wait((waiting, second))
        upstream.answer = Ordinary()
        assert (await asyncio.wait_for(proxy.chat(), 10)).status == 200


@models
async def test_deadline(model: str, upstream: Upstream) -> None:
    """A request has so many seconds in all; its branches are stopped then, on the server too."""
    upstream.answer = Ordinary(*["word "] * 1_000, pace_s=0.05)
    async with serving(upstream.url, deadline_s=0.5) as proxy:
        began = time.monotonic()
        answer = await proxy.chat(model, stream=True)
        assert time.monotonic() - began < 5
        await upstream.quiet(1)
    if model == "stub":
        assert answer.events[-1]["error"]["code"] == "timeout"
        assert b"[DONE]" not in answer.content
    else:
        assert answer.status in (200, 504)


async def test_a_request_cannot_lengthen_the_deadline(upstream: Upstream) -> None:
    """The shorter of the proxy's deadline and the request's own counts."""
    upstream.answer = Ordinary(*["word "] * 1_000, pace_s=0.05)
    async with serving(upstream.url, deadline_s=0.5) as proxy:
        answer = await proxy.chat("stub@sequential", anabranch={"budget": {"deadline_s": 60}})
    assert answer.json["anabranch"]["finish_reason"] == "deadline"
    assert answer.json["choices"][0]["finish_reason"] == "length"


async def test_every_request_is_told_of_once(upstream: Upstream) -> None:
    """Observers hear the beginning and the end of each request once, however it ends, with its status."""
    recorder = Recorder()
    async with serving(upstream.url, observers=[recorder]) as proxy:
        await proxy.chat()
        await proxy.chat("stub@skeleton", stream=True)
        await proxy.ask("/v1/chat/completions", b"{")
        await proxy.ask("/nowhere")
        upstream.answer = silent
        await leaving(proxy.chat("stub@sequential"), after_s=0.2)
        await until(lambda: len(recorder.ended) == 5)
    assert recorder.began == recorder.ended
    assert [each.status for each in recorder.ended] == [200, 200, 400, 404, 499]
    assert [each.strategy for each in recorder.ended[:2]] == ["none", "skeleton"]
    assert all(each.wall_s is not None for each in recorder.ended)


@pytest.mark.parametrize("model", ["stub", "stub@skeleton"])
async def test_slow_readers(model: str, upstream: Upstream) -> None:
    """A client that reads slowly holds up nobody else, and gets all of its answer."""
    much = saying(*["word " * 2_000] * 400)
    upstream.answer = Ordinary(point1=much, plain=much)
    async with serving(upstream.url) as proxy:
        async with proxy.open("/v1/chat/completions", chat(model, stream=True)) as slow:
            await asyncio.sleep(0.2)
            for _ in range(3):
                assert (await asyncio.wait_for(proxy.ask("/health"), 10)).status == 200
            content = await slow.content.read()
        assert content.endswith(b"data: [DONE]\n\n")


async def stopped(upstream: Upstream, drain: str, release: asyncio.Event) -> tuple[Any, float]:
    """The proxy is told to stop while it streams; what the client got of it, and how long it took."""
    first, *others = chat_events({}, ["begun ", "and done"])
    upstream.answer = gated(release, [first, others[0]], others[1:])
    async with child(upstream.url, "--drain", drain) as (proxy, process):
        async with proxy.open("/v1/chat/completions", chat(stream=True)) as response:
            assert await response.content.readany()
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            with pytest.raises(aiohttp.ClientConnectionError):
                await proxy.ask("/health")
            if drain != "0":
                release.set()
            content: Any
            try:
                content = await response.content.read()
            except aiohttp.ClientError as error:
                content = error
        await asyncio.wait_for(process.wait(), 20)
        return content, time.monotonic() - began


async def test_graceful_end(upstream: Upstream) -> None:
    """Told to stop, it takes no more connections, and lets those that are served come to their end."""
    content, _ = await stopped(upstream, "20", asyncio.Event())
    assert content.endswith(b"data: [DONE]\n\n")


async def test_end_of_the_drain(upstream: Upstream) -> None:
    """After the time for that, what is still under way is cancelled, on the server too."""
    _, took = await stopped(upstream, "0", asyncio.Event())
    assert took < 15
    await upstream.quiet(2)
