"""The command as a whole: it starts quickly, and helps."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import anabranch
from anabranch.cli.app import run


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"anabranch {anabranch.__version__}\n"


@pytest.mark.parametrize("command", [[], ["ask"], ["strategies"], ["launch"], ["doctor"], ["trace"]])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--help works everywhere, and ends with 0."""
    assert run([*command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_it_starts_quickly_and_loads_nothing_heavy() -> None:
    """--version takes less than half a second of CPU, and imports neither openai nor rich nor networkx."""
    code = (
        "import sys; from anabranch.cli.app import run; run(['--version']);"
        "print([m for m in ('openai', 'aiohttp', 'pydantic', 'networkx', 'jinja2', 'rich.console') if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "[]"
    assert after.ru_utime - before.ru_utime < 0.5


def test_python_dash_m_is_the_same_command() -> None:
    """`python -m anabranch` works, with its exit codes."""
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("anabranch: error: ")
