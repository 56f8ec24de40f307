"""`anabranch doctor`: what is here, what can be reached, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.cli.app import run


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("ANABRANCH_BACKEND", "scripted:")


def test_a_default_backend_that_answers_is_health(capsys: pytest.CaptureFixture[str]) -> None:
    """The default backend's capabilities are shown, and the code is 0."""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "✓ scripted:  used by default" in out
    assert "json_schema" in out
    assert "xllamacpp" in out


def test_a_long_path_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path that does not fit goes on in the next line."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / ("deep" * 20)))
    run(["doctor"])
    out = capsys.readouterr().out
    assert "…" not in out
    assert "deep" * 20 in out.replace("\n", "").replace(" ", "")


def test_a_backend_that_cannot_be_reached_is_told_and_others_are_still_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What goes wrong with one server is a line of the report; only the default one decides on the code."""
    assert run(["doctor", "--json", "-b", "http://127.0.0.1:9/v1", "-b", "nonsense:"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    errors = {backend["url"]: backend["error"] for backend in report["backends"]}
    assert errors["scripted:"] is None
    assert "nonsense" in errors["nonsense:"]
    assert errors["http://127.0.0.1:9/v1"]


def test_a_default_backend_that_cannot_answer_is_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """$OPENAI_BASE_URL is the default where nothing else is named; if it is dead, the code is 1."""
    monkeypatch.delenv("ANABRANCH_BACKEND")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert run(["doctor"]) == 1
    assert "✗ http://127.0.0.1:9/v1  used by default" in capsys.readouterr().out


def test_the_embedded_model_is_not_fetched_by_asking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an empty cache the embedded backend counts as able to answer, and nothing is downloaded."""
    pytest.importorskip("xllamacpp", reason="the embedded engine is not installed")
    monkeypatch.delenv("ANABRANCH_BACKEND")
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    assert run(["doctor", "--json"]) == 0
    (backend,) = json.loads(capsys.readouterr().out)["backends"]
    assert backend["note"] == "its model is fetched at first use"
