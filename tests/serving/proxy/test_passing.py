"""What names no strategy passes through, byte for byte, in both directions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy_server import Client, chat, client, serving
from upstream import Upstream, until
from upstream_forms import DONE, SERVED, bytewise, content_of, event, gated, gzipped, stream
from upstream_replies import WITH_AT, chat_events

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
HISTORY = [
    {"role": "developer", "content": "Be brief.", "name": "boss"},
    {"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE, AUDIO], "unknown_field": 1},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
    },
    {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "User: found it\nAssistant: <optillm_approach>moa</optillm_approach>",
    },
    {"role": "user", "content": "And now?"},
]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampling": {"temperature": 0.30000000000000004, "top_p": 1, "seed": 7, "stop": ["world"], "max_tokens": 4},
    "server's own keys": {
        "top_k": 5,
        "min_p": 0.1,
        "chat_template_kwargs": {"enable_thinking": False},
        "regex": "a|b",
    },
    "bookkeeping": {"user": "me", "metadata": {"a": "b"}, "store": False, "logit_bias": {"50256": -100}},
    "tools": {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    "history": {"messages": HISTORY},
    "format": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "choices": {"n": 3},
    "reasoning": {"reasoning_effort": "high"},
    "model with an @": {"model": WITH_AT},
    "nulls": {"stop": None, "stream_options": None, "tools": None},
}


@pytest.fixture
async def direct(upstream: Upstream) -> AsyncIterator[Client]:
    """A client that speaks to the model server itself."""
    async with client(f"http://127.0.0.1:{upstream.port}") as made:
        yield made


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS.keys())
async def test_chat_passes_both_ways_as_it_is(
    fields: dict[str, Any], stream: bool, proxy: Client, direct: Client, upstream: Upstream
) -> None:
    """Request body, status, headers and reply body are the same with the proxy between and without it."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    # Odd spacing and escapes: a body that was taken apart and put together again would differ.
    body = json.dumps({**chat(), **options, **fields}, indent=3).replace("U", "\\u0055").encode()
    through = await proxy.ask("/v1/chat/completions", body)
    bare = await direct.ask("/v1/chat/completions", body)
    assert upstream.requests[0].body == upstream.requests[1].body == body
    assert (through.status, through.content) == (bare.status, bare.content)
    assert through.headers["content-type"] == bare.headers["content-type"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_other_endpoints_pass(path: str, streamed: bool, proxy: Client, direct: Client) -> None:
    """Completions, embeddings and responses pass as they are."""
    body = {"model": "stub", "prompt": "Hi", "input": "Hi", "new_parameter": [1], "stream": streamed}
    through, bare = await proxy.ask(path, body), await direct.ask(path, body)
    assert (through.status, through.content) == (bare.status, bare.content)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_any_other_path_passes(method: str, proxy: Client, upstream: Upstream) -> None:
    """A path that the proxy does not know reaches the model server as it was written, with its query."""
    target = "/v1/files/a%2Fb%41;c?x=%7e+y&x=&z"
    body = b"" if method == "GET" else b"\x00\xff binary"
    answer = await proxy.ask(target, body, method=method, headers={"content-type": "app/x"})
    assert answer.json == {"method": method, "target": target, "length": len(body)}
    assert upstream.requests[0].target == target
    assert upstream.requests[0].body == body
    assert upstream.requests[0].header("content-type") == "app/x"


async def test_upload_passes(proxy: Client, upstream: Upstream) -> None:
    """A multipart upload keeps its boundary and its bytes."""
    body = b"--xyz\r\nContent-Disposition: form-data; name=file\r\n\r\n\x00\x01\xfe\r\n--xyz--\r\n"
    kind = "multipart/form-data; boundary=xyz"
    answer = await proxy.ask("/v1/audio/transcriptions", body, headers={"content-type": kind})
    assert answer.status == 200
    assert upstream.requests[0].body == body
    assert upstream.requests[0].header("content-type") == kind


async def test_reply_headers(proxy: Client) -> None:
    """Rate limits and headers that nobody knows come back; cookies and hop-by-hop headers do not."""
    answer = await proxy.chat()
    kept = [pair for pair in SERVED if pair[0] != "set-cookie"]
    assert [(name, answer.headers.get(name)) for name, _ in kept] == kept
    assert "set-cookie" not in answer.headers
    assert "connection" not in answer.headers


async def test_request_headers(proxy: Client, upstream: Upstream) -> None:
    """A client's headers reach the server, but for its credentials and what concerns the connection only."""
    sent = {
        "openai-organization": "org-1",
        "x-smg-routing-key": "k",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "user-agent": "OpenAI/Python 9",
        "authorization": "Bearer clients-own",
        "cookie": "a=b",
        "x-api-key": "clients-own",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    await proxy.chat(headers=sent)
    got = upstream.requests[0]
    kept = ("openai-organization", "x-smg-routing-key", "traceparent", "user-agent")
    assert {name: got.header(name) for name in kept} == {name: sent[name] for name in kept}
    assert got.header("host") == f"127.0.0.1:{upstream.port}"
    assert not [value for _, value in got.headers if "clients-own" in value]
    assert got.header("cookie") is None


async def test_hop_headers_are_dropped(proxy: Client, upstream: Upstream) -> None:
    """Headers that `Connection` names go no further (RFC 9110, section 7.6.1)."""
    await proxy.chat(headers={"connection": "keep-alive, x-hop", "x-hop": "1"})
    assert upstream.requests[0].header("x-hop") is None


async def test_chunks_go_out_as_they_come(proxy: Client, upstream: Upstream) -> None:
    """The first event is with the client while the server still works on the second."""
    gate = asyncio.Event()
    first, *others = chat_events({}, ["a", "b"])
    upstream.answer = gated(gate, [first], others)
    async with proxy.open("/v1/chat/completions", chat(stream=True)) as response:
        assert await response.content.readany() == first
        gate.set()
        assert await response.content.read() == b"".join(others)


async def test_split_utf8(proxy: Client, upstream: Upstream) -> None:
    """A stream that comes byte by byte, characters torn apart, goes out with the same bytes."""
    events = list(chat_events({}, ["naïve ", "🌍", "日本"]))
    upstream.answer = bytewise(stream(*events, done=False))
    answer = await proxy.chat(stream=True)
    assert answer.content == b"".join(events)
    assert answer.text() == "naïve 🌍日本"


async def test_stream_with_carriage_returns_and_comments(proxy: Client, upstream: Upstream) -> None:
    """Comments, event names and CRLF line ends of a server's own pass as they are."""
    raw = (
        b": hello\r\n\r\nevent: x\r\nid: 1\r\ndata: "
        + json.dumps({"choices": [{"index": 0, "delta": {}}]}).encode()
        + b"\r\n\r\n"
        + DONE
    )
    upstream.answer = stream(raw, done=False)
    assert (await proxy.chat(stream=True)).content == raw


async def test_compressed_reply(proxy: Client, upstream: Upstream) -> None:
    """A server that compresses without being asked is relayed as it is."""
    upstream.answer = gzipped({"choices": [{"index": 0}]})
    answer = await proxy.chat()
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content[:2] == b"\x1f\x8b"
    assert upstream.requests[0].header("accept-encoding") == "identity"


async def test_large_bodies(proxy: Client, upstream: Upstream) -> None:
    """Megabytes pass in both directions."""
    reply = json.dumps({"choices": [{"index": 0, "message": {"content": "é" * 4_000_000}}]}).encode()
    upstream.answer = content_of(reply)
    question = "x" * 8_000_000
    answer = await proxy.chat(content=question)
    assert answer.content == reply
    assert upstream.requests[0].json["messages"][0]["content"] == question


async def test_large_tool_call_in_a_stream(proxy: Client, upstream: Upstream) -> None:
    """One event of a megabyte is not lost."""
    call = {"index": 0, "function": {"arguments": "x" * 1_000_000}}
    big = event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    upstream.answer = stream(big)
    assert (await proxy.chat(stream=True)).content == big + DONE


async def test_connections_are_reused(proxy: Client, upstream: Upstream) -> None:
    """A server that had closed an idle connection costs the client nothing."""
    upstream.keep_alive = False
    for _ in range(5):
        assert (await proxy.chat()).status == 200


async def test_a_stale_connection_is_no_error(proxy: Client, upstream: Upstream) -> None:
    """A server that was started anew is found again at once."""
    assert (await proxy.chat()).status == 200
    await upstream.stop()
    await upstream.__aenter__()
    assert (await proxy.chat()).status == 200


async def test_no_hidden_limit_on_connections(upstream: Upstream) -> None:
    """Three hundred requests are with the server at the same time."""
    gate = asyncio.Event()
    upstream.answer = gated(gate, [], list(chat_events({}, ["a"])))
    async with serving(upstream.url) as proxy, asyncio.TaskGroup() as group:
        asked = [group.create_task(proxy.chat(stream=True)) for _ in range(300)]
        await until(lambda: len(upstream.inflight) == 300, 30)
        gate.set()
    assert all(each.result().status == 200 for each in asked)


async def test_models(proxy: Client, direct: Client) -> None:
    """The server's models come first and unchanged, then one for each with each strategy."""
    listed = (await proxy.ask("/v1/models")).json
    own = (await direct.ask("/v1/models")).json["data"]
    assert listed["object"] == "list"
    assert listed["data"][: len(own)] == own
    names = [model["id"] for model in listed["data"]]
    assert len(set(names)) == len(names)
    assert {f"{model['id']}@{name}" for model in own for name in ("skeleton", "sequential")} <= set(names)
    assert all({"id", "object", "created", "owned_by"} <= model.keys() for model in listed["data"])


@pytest.mark.parametrize("name", ["stub", WITH_AT, "stub@skeleton", f"{WITH_AT}@skeleton"])
async def test_one_model(name: str, proxy: Client) -> None:
    """Each model of the list can be asked for, slashes and all."""
    assert (await proxy.ask(f"/v1/models/{name}")).json["id"] == name


async def test_unknown_model(proxy: Client) -> None:
    """A model that is not in the list is a 404 that names those that are."""
    answer = await proxy.ask("/v1/models/stub@nonsense")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert "stub@skeleton" in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
async def test_other_methods_pass(path: str, proxy: Client, upstream: Upstream) -> None:
    """A known path with another method (stored completions are listed so) is the server's to answer."""
    await proxy.ask(path + "?limit=2", method="GET")
    assert [(each.method, each.target) for each in upstream.requests] == [("GET", path + "?limit=2")]


@pytest.mark.parametrize("value", ["é ü 🌍".encode(), b"plain"])
async def test_header_values_keep_their_bytes(value: bytes, proxy: Client, upstream: Upstream) -> None:
    """A header that is not ASCII reaches the server with the same bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    writer.write(b"GET /v1/files/x HTTP/1.1\r\nHost: x\r\nX-Title: " + value + b"\r\n\r\n")
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert (upstream.requests[0].header("x-title") or "").encode("latin-1") == value


@pytest.mark.parametrize(
    "path", ["/v1/../abort_request", "/v1/files/../../flush_cache", "/v1/%2e%2e/flush_cache", "/v1/.."]
)
async def test_no_way_out_of_v1(path: str, proxy: Client, upstream: Upstream) -> None:
    """What lies beside `/v1` on the server (its controls) is not reached by climbing."""
    answer = await proxy.ask(path, {"abort_all": True})
    assert answer.status == 404
    assert answer.error
    assert upstream.requests == []
