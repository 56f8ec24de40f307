"""Clients in environments of their own: each runs all of its cases in one process, and the tests look at what it saw.

`prepare.py` makes the environments.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.asking import (
    check_figures,
    check_headers,
    check_points,
    check_reply,
    check_stream,
    run_client,
)
from clients.conftest import Proxy
from clients.prepare import PREPARE_COMMAND, client_node, client_python

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = ("langchain", "litellm", "openai_sdk.mjs", "ai_sdk.mjs")
REFUSALS = {
    "langchain": "BadRequestError",
    "litellm": "BadRequestError",
    "openai_sdk.mjs": "BadRequestError",
    "ai_sdk.mjs": "APICallError",
}
"""What each client raises at a 400."""


def command_of(client: str) -> list[str | Path]:
    """How to run a client's cases; the test is skipped where its environment is not prepared."""
    if not client.endswith(".mjs"):
        python = client_python(client)
        return [python, PROGRAMS / f"{client}_chat.py"] if python else _skip(client)
    found = client_node()
    return [found[0], found[1] / client] if found else _skip(client)


def _skip(client: str) -> Any:
    if client.endswith(".mjs") and shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    pytest.skip(f"{client} is not prepared: {PREPARE_COMMAND}")


@pytest.fixture(scope="session")
def observe() -> Callable[[str, Proxy], dict[str, Any]]:
    """Run a client against a proxy; once for all tests."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def observed(client: str, proxy: Proxy) -> dict[str, Any]:
        if (client, proxy.url) not in known:
            known[client, proxy.url] = run_client(command_of(client), proxy)
        return known[client, proxy.url]

    return observed


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seen(client: str, proxy: Proxy, observe: Callable[[str, Proxy], dict[str, Any]]) -> dict[str, Any]:
    """What a client saw."""
    return observe(client, proxy)


def test_a_plain_request(seen: dict[str, Any]) -> None:
    """A request that names no strategy is answered, whole and streamed."""
    check_reply(seen["plain"])
    check_stream(seen["plain_stream"])
    assert seen["plain_stream"]["text"] == seen["plain"]["text"]


def test_a_strategy(seen: dict[str, Any]) -> None:
    """A model's name with a strategy behind it gives an ordinary reply, made of branches."""
    check_reply(seen["strategy"])
    check_points(seen["strategy"]["text"])
    check_headers(seen["strategy"]["headers"])


def test_a_strategy_streamed(seen: dict[str, Any]) -> None:
    """A strategy's answer comes in pieces, with the usage at its end."""
    check_stream(seen["strategy_stream"])
    check_points(seen["strategy_stream"]["text"])


def test_the_figures_reach_clients_that_keep_unknown_fields(client: str, seen: dict[str, Any]) -> None:
    """Clients that keep fields they do not know have the `anabranch` object, whole and streamed."""
    if "extra" not in seen["strategy"]:
        pytest.skip(f"{client} drops unknown fields; it has the headers")
    check_figures(seen["strategy"]["extra"])
    check_figures(seen["strategy_stream"]["extra"])


def test_structured_output_with_a_strategy(client: str, seen: dict[str, Any]) -> None:
    """A JSON schema is honoured, by falling back to plain decoding."""
    if "parsed" not in seen:
        pytest.skip(f"{client} has no helper that parses")
    assert seen["parsed"]["name"] in ("Ann", "Bob")
    assert isinstance(seen["parsed"]["tall"], bool)


def test_tools_with_a_strategy(seen: dict[str, Any]) -> None:
    """A request with tools is answered by the server itself, and the headers say so."""
    assert seen["tools"]["text"].strip()
    assert seen["tools"]["headers"]["x-anabranch-strategy"] == "sequential"
    assert "tools" in seen["tools"]["headers"]["x-anabranch-fell-back"]


def test_an_unknown_strategy(client: str, seen: dict[str, Any]) -> None:
    """It is the client's error for a 400, and says which strategies there are."""
    refused = seen["unknown"]
    assert REFUSALS[client] in refused["errors"]
    assert refused["status"] == 400
    assert "nonsense" in refused["message"]
    assert "skeleton" in refused["message"]


@pytest.mark.parametrize("client", ["openai_sdk.mjs"])
def test_what_only_openai_for_node_has(seen: dict[str, Any], proxy: Proxy) -> None:
    """The list of models, one that is missing, the streaming helper, and the Responses API."""
    assert {proxy.model, proxy.strategy_model} <= set(seen["models"])
    assert (seen["missing"]["errors"], seen["missing"]["status"]) == (["NotFoundError"], 404)
    assert seen["missing"]["code"] == "model_not_found"
    check_points(seen["helper"]["text"])
    assert seen["helper"]["chunks"] > 5
    check_points(seen["responses"]["text"])
    assert seen["responses"]["chunks"] > 5
    assert seen["responses"]["usage"]["output_tokens"] > 0
