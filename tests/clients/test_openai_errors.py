"""The error classes that OpenAI's client for Python raises for what goes wrong in the proxy itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from anabranch.serving import launch
from clients.conftest import READY_S

pytestmark = pytest.mark.clients

KEY = "a-key-for-tests"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a proxy that wants a key, in front of a server that is not there."""
    pytest.importorskip("uvicorn", reason="the proxy is not installed: pip install 'anabranch[proxy]'")
    keys: Path = tmp_path_factory.mktemp("locked") / "keys"
    keys.write_text(f"{KEY}\n")
    url, nowhere = (f"http://127.0.0.1:{launch.free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "anabranch", "serve", "--backend", f"{nowhere}/v1"]
    command += ["--port", url.rpartition(":")[2], "--api-key-file", str(keys), "--max-body", "100000"]
    with launch.ServerProcess(command, url=url, log=keys.with_name("log"), ready_s=READY_S):
        yield f"{url}/v1"


def ask(base_url: str, key: str, model: str, *, text: str = "Hello", stream: bool = False) -> None:
    """Ask once, without the client's own retries; a stream is read to its end."""
    request: Any = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
    with OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        reply = client.chat.completions.create(**request)
        if stream:
            list(reply)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["any", "any@skeleton"])
def test_a_server_that_is_not_there(locked: str, model: str, stream: bool) -> None:
    """It is an InternalServerError with status 502, plain and with a strategy, whole and streamed."""
    with pytest.raises(openai.InternalServerError) as caught:
        ask(locked, KEY, model, stream=stream)
    assert caught.value.status_code == 502
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


def test_a_wrong_key(locked: str) -> None:
    """It is an AuthenticationError, and the message does not repeat the key."""
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(locked, "another-key", "any")
    assert caught.value.code == "invalid_api_key"
    assert "another-key" not in str(caught.value)


def test_a_body_that_is_too_long(locked: str) -> None:
    """It is an APIStatusError with status 413."""
    with pytest.raises(openai.APIStatusError) as caught:
        ask(locked, KEY, "any", text="a" * 200_000)
    assert caught.value.status_code == 413
    assert caught.value.type == "invalid_request_error"
