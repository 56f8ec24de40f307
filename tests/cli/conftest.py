"""The environment that each test finds; and the example run: a route, an outline, eight points (one fails, one is stopped), and a conclusion that joins them."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.timeline import Timeline
from anabranch.orchestrator.events import Event
from anabranch.orchestrator.trace import read_trace


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands note in the environment which server they were told of: that goes when the test ends."""
    monkeypatch.setenv("ANABRANCH_BACKEND", "")


@pytest.fixture(scope="session")
def example_file() -> Path:
    return Path(__file__).with_name("example_run.jsonl")


@pytest.fixture(scope="session")
def example_events(example_file: Path) -> list[Event]:
    return read_trace(example_file)


@pytest.fixture
def example(example_events: list[Event]) -> Timeline:
    return Timeline.of(example_events)
