"""`anabranch strategies`: names, summaries, parameters."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

from anabranch.cli.app import run
from anabranch.cli.strategies import describe
from anabranch.orchestrator.registry import Registry
from anabranch.orchestrator.registry import strategies as registry


class Example(BaseModel):
    """Does one thing.

    Source: a paper
    of two lines.

    - a list
    - stays one
    """

    name: ClassVar[str] = "example"

    width: int = Field(default=3, ge=1, le=9, description="how wide\n  it is")
    how: Literal["fast", "slow"] = "fast"
    folder: str | None = None
    labels: list[str] = Field(description="which")


def test_a_strategy_is_described_by_its_own_class() -> None:
    """Summary, text and parameters come from the docstring and the fields."""
    told = describe("example", Example)
    assert told.summary == "Does one thing."
    assert told.about == "Source: a paper of two lines.\n\n- a list\n- stays one"
    assert [(p.name, p.kind, p.default, p.required, p.description) for p in told.parameters] == [
        ("width", "integer ≥ 1, ≤ 9", 3, False, "how wide it is"),
        ("how", "fast | slow", "fast", False, ""),
        ("folder", "text or null", None, False, ""),
        ("labels", "list of text", None, True, "which"),
    ]


def test_a_strategy_that_is_no_pydantic_model_has_no_parameters() -> None:
    """Anything that is registered can be described."""

    class Bare:
        pass

    assert describe("bare", Bare).parameters == ()


def test_every_registered_strategy_is_listed_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has each name, and a line on what it does; as JSON, too."""
    assert run(["strategies", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told] == registry.names()
    assert all(one["summary"] and not one["summary"].startswith("cannot be loaded") for one in told)
    assert run(["strategies"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in registry.names())


@pytest.mark.parametrize("name", ["sequential", "skeleton"])
def test_one_strategy_in_detail(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every parameter is shown, each with a description."""
    assert run(["strategies", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(parameter["description"] for parameter in told["parameters"])
    assert run(["strategies", name]) == 0
    out = capsys.readouterr().out
    assert all(parameter["name"] in out for parameter in told["parameters"])


def test_a_strategy_that_cannot_be_loaded_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken package is shown as such in the list."""
    load = Registry.load

    def broken(self: Registry, name: str) -> object:
        if name == "skeleton":
            raise ImportError("no module named torch")
        return load(self, name)

    monkeypatch.setattr(Registry, "load", broken)
    assert run(["strategies"]) == 0
    out = capsys.readouterr().out
    assert "cannot be loaded: no module named torch" in out
    assert "sequential" in out
