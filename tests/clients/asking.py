"""What all clients are asked, and what a reply has to look like, whoever reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clients.conftest import Proxy

PLAIN = "Say hello."
LIST = "Give me three tips for staying healthy."
JSON = 'Repeat this on one line: {"name":"Ann","tall":true}'
PLAIN_TOKENS = 24
LIST_TOKENS = 96
"""Enough for an outline with two points; fewer and a skeleton does not apply."""

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def run_client(command: Sequence[str | Path], proxy: Proxy) -> dict[str, Any]:
    """Run a client's script, in its own environment, against the proxy; what it saw."""
    task = {
        "base_url": proxy.base_url,
        "model": proxy.model,
        "strategy_model": proxy.strategy_model,
        "plain_prompt": PLAIN,
        "list_prompt": LIST,
        "json_prompt": JSON,
        "tool": TOOL,
        "plain_tokens": PLAIN_TOKENS,
        "list_tokens": LIST_TOKENS,
    }
    done = subprocess.run(
        [*map(str, command), json.dumps(task)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check_reply(reply: Mapping[str, Any]) -> None:
    """Text, a reason why it ended, and the counts: what every client shows of every reply."""
    assert reply["text"].strip()
    assert reply["finish_reason"] in ("stop", "length")
    assert reply["usage"]["prompt_tokens"] > 0
    assert 0 < reply["usage"]["completion_tokens"]


def check_stream(reply: Mapping[str, Any]) -> None:
    """The same, and it came in pieces."""
    check_reply(reply)
    assert reply["chunks"] > 5


def check_figures(figures: Mapping[str, Any]) -> None:
    """The object that says how the answer was made."""
    assert (figures["strategy"], figures["active"], figures["fell_back"]) == ("skeleton", True, None)
    usage = figures["usage"]
    assert usage["branches"] >= 3
    assert usage["completion"] == usage["work"] > usage["span"] > 0
    assert len(figures["run_id"]) == 32


def check_headers(headers: Mapping[str, str]) -> None:
    """The same in the headers of a whole reply."""
    assert headers["x-anabranch-strategy"] == "skeleton"
    assert int(headers["x-anabranch-branches"]) >= 3
    assert int(headers["x-anabranch-work"]) > int(headers["x-anabranch-span"]) > 0
    assert len(headers["x-anabranch-run-id"]) == 32
    assert headers["x-request-id"]


def check_points(text: str) -> None:
    """A skeleton's answer is its points, in order."""
    assert text.startswith("1. **")
    assert "\n\n2. **" in text
