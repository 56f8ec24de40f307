"""The proxy as its users start it, in front of each kind of real model server, for clients that are not ours."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI

from anabranch.serving import launch

READY_S = 120.0
"""Longest wait for the proxy, in seconds; an embedded model is loaded in that time."""


def pytest_configure(config: pytest.Config) -> None:
    """The mark of all tests here."""
    config.addinivalue_line(
        "markers", "clients: drives the proxy with a client that is not ours, on real servers"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A running proxy.

    Attributes:
        url: without `/v1`.
        model: the name of the model behind it.
    """

    url: str
    model: str

    @property
    def base_url(self) -> str:
        """What a client gets as base URL."""
        return f"{self.url}/v1"

    @property
    def strategy_model(self) -> str:
        """The model that answers by a skeleton."""
        return f"{self.model}@skeleton"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("local", marks=pytest.mark.llama),
    ],
)
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The proxy in front of a server: `sglang`, the same as an `openai` server, `local`, or a `llama.cpp` server."""
    if find_spec("uvicorn") is None:
        pytest.skip("the proxy is not installed: pip install 'anabranch[proxy]'")
    backend = _backend(request)
    port = launch.free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "anabranch", "serve", "--backend", backend, "--port", str(port)]
    log = tmp_path_factory.mktemp("proxy") / "log"
    with launch.ServerProcess(command, url=url, log=log, ready_s=READY_S):
        yield Proxy(url=url, model=_first_model(url))


def _backend(request: pytest.FixtureRequest) -> str:
    if request.param == "local":
        return str(request.getfixturevalue("local_backend_url"))
    if request.param == "llama.cpp":
        return str(request.getfixturevalue("llama_openai_url"))
    sglang = str(request.getfixturevalue("sglang_url"))
    return sglang if request.param == "sglang" else f"http://{sglang.removeprefix('sglang://')}/v1"


def _first_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=READY_S) as reply:
        return str(json.load(reply)["data"][0]["id"])


@pytest.fixture(scope="session")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three items of GSM8K's test split, as `{question, answer}`; skipped where the data is not at hand."""
    data = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "benchmarks" / "gsm8k_test.jsonl"
    if not data.is_file():
        pytest.skip(f"no {data}; set ANABRANCH_TEST_DATA to a folder with GSM8K's test split")
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()[:3]]
    items = tmp_path_factory.mktemp("gsm8k") / "items.jsonl"
    items.write_text(
        "".join(json.dumps({"question": row["problem"], "answer": str(row["answer"])}) + "\n" for row in rows)
    )
    return items


@pytest.fixture
def client(proxy: Proxy) -> Iterator[OpenAI]:
    with OpenAI(base_url=proxy.base_url, api_key="EMPTY", max_retries=0) as made:
        yield made


@pytest.fixture
async def aclient(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=proxy.base_url, api_key="EMPTY", max_retries=0, http_client=DefaultAioHttpClient()
    ) as made:
        yield made
