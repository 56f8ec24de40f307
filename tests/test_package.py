"""The package as users meet it: light to import, typed, with entry points that resolve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anabranch
from anabranch.orchestrator.registry import Registry, backends, strategies

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return set(output.split())


@pytest.mark.parametrize(
    "statement", ["import anabranch", "from anabranch import Orchestrator, Budget, Run, TaskGraph, Policy"]
)
def test_importing_pulls_in_nothing_heavy(statement: str) -> None:
    """Servers' clients, graphs and validation are imported when they are first used."""
    heavy = {"openai", "aiohttp", "networkx", "pydantic", "jinja2", "rich", "typer", "tenacity", "numpy"}
    assert not modules_after(statement) & heavy


def test_public_names_are_there_and_others_are_not() -> None:
    """Every name in `__all__` resolves; an unknown one is an AttributeError."""
    for name in anabranch.__all__:
        assert getattr(anabranch, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        anabranch.nonsense  # noqa: B018


@pytest.mark.parametrize("registry", [strategies, backends])
def test_every_entry_point_resolves(registry: Registry) -> None:
    """What is registered can be loaded."""
    assert registry.names()
    for name in registry.names():
        assert callable(registry.load(name))


@pytest.mark.parametrize("area", ["orchestrator", "strategies", "prompts", "serving"])
def test_the_folders_at_the_top_lead_to_the_code(area: str) -> None:
    """The signposts are relative links into the package."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("not in a checkout")
    link = ROOT / area
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == (ROOT / "src/anabranch" / area).resolve()
