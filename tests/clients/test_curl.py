"""`curl -N`: the stream as it is on the wire, line by line."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from clients.asking import LIST, LIST_TOKENS, PLAIN, PLAIN_TOKENS, check_figures, check_points
from clients.conftest import Proxy

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]
TIMES = "\n%{time_starttransfer} %{time_total}"


def curl(proxy: Proxy, body: dict[str, Any]) -> tuple[str, str, tuple[float, float]]:
    """Post a chat completion: status line and headers, body, and the seconds to its first byte and to its end."""
    command = ["curl", "-N", "-sS", "-i", "-w", TIMES, "-H", "Content-Type: application/json", "-d", "@-"]
    done = subprocess.run(
        [*command, f"{proxy.base_url}/chat/completions"],
        input=json.dumps(body).encode(),
        capture_output=True,
        timeout=250,
        check=True,
    )
    told, _, times = done.stdout.decode().rpartition("\n")
    head, _, content = told.partition("\r\n\r\n")
    first, last = map(float, times.split())
    return head.lower(), content, (first, last)


def request(model: str, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A streamed chat completion."""
    messages = [{"role": "user", "content": prompt}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        **more,
    }


def events(content: str) -> list[dict[str, Any]]:
    """The JSON of all events; checks that the rest is comments, and that `[DONE]` is the last."""
    blocks = [block for block in content.split("\n\n") if block]
    assert blocks[-1] == "data: [DONE]"
    comments = [block for block in blocks if block.startswith(":")]
    assert set(comments) <= {": keep-alive"}
    data = [block for block in blocks[:-1] if not block.startswith(":")]
    assert all(block.startswith("data: {") and "\n" not in block for block in data)
    return [json.loads(block.removeprefix("data: ")) for block in data]


def test_a_plain_stream(proxy: Proxy) -> None:
    """The server's events pass as they are written: the first long before the last."""
    head, content, (first, last) = curl(proxy, request(proxy.model, PLAIN, PLAIN_TOKENS))
    assert head.startswith("http/1.1 200")
    assert "content-type: text/event-stream" in head
    chunks = events(content)
    assert len(chunks) > 5
    assert all("anabranch" not in chunk for chunk in chunks)
    assert last > first + 0.02


def test_a_strategy_streamed(proxy: Proxy) -> None:
    """A strategy's events are a chat completion's, written while the branches decode; without usage unless asked."""
    head, content, (first, last) = curl(proxy, request(proxy.strategy_model, LIST, LIST_TOKENS))
    assert head.startswith("http/1.1 200")
    assert "content-type: text/event-stream" in head
    assert "cache-control: no-cache" in head
    assert "x-accel-buffering: no" in head
    assert "x-anabranch-strategy: skeleton" in head
    chunks = events(content)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    check_points("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert all("usage" not in chunk for chunk in chunks)
    check_figures(chunks[-1]["anabranch"])
    assert last > first + 0.02


@pytest.mark.parametrize("body", ["{", "[]", '{"model": 3}', "{}"])
def test_a_body_that_is_no_request(proxy: Proxy, body: str) -> None:
    """It gets a 400 in OpenAI's envelope."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(
        [*command, f"{proxy.base_url}/chat/completions"], capture_output=True, timeout=60, check=True
    )
    content, _, status = done.stdout.decode().rpartition("\n")
    assert status == "400"
    error = json.loads(content)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
