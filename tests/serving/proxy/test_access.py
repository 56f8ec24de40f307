"""The access log: one line for each request, with what is known of it and nothing that is secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.orchestrator.errors import BackendUnavailable, RequestRejected
from anabranch.serving.proxy.observers import access
from anabranch.serving.proxy.observers.access import AccessLog, configure
from anabranch.serving.proxy.settings import digest
from anabranch.testing import Reply, ScriptedBackend
from observed import QUESTION, passed_through, serve, skeleton

POINTS = [Reply.of(" one two", tokens=20, delay_s=2), Reply.of(" three", delay_s=3), Reply.of(" four")]
HOSTILE = 'M"\n{"status":200}\r\x1b[2J\u2028 x=y'


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """The logger as it was before the test."""
    log = access.log
    kept = (log.handlers[:], log.propagate, log.level, log.disabled)
    yield
    log.handlers[:], log.propagate, log.disabled = kept[0], kept[1], kept[3]
    log.setLevel(kept[2])


class Lines:
    """What the log writes to standard output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self) -> list[str]:
        written = self._capsys.readouterr().out
        assert written == "" or written.endswith("\n")
        return written.split("\n")[:-1]

    def json(self) -> dict[str, Any]:
        """The only line."""
        (line,) = self()
        parsed: dict[str, Any] = json.loads(line)
        return parsed


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """The log's lines. A test configures the log itself, since each phase of a test has a standard output of its own."""
    return Lines(capsys)


def test_a_run_in_one_line(lines: Lines) -> None:
    """A line holds who asked for what, how it ended, how long it took, and what it used."""
    configure("json")
    serve([AccessLog()], skeleton(*POINTS), strategy="skeleton", owner=digest("secret"), first_byte_s=1.23456)
    line = lines.json()
    ts = line.pop("ts")
    assert ts.endswith("Z")
    assert len(ts) == len("2026-01-01T00:00:00.000Z")
    assert line == {
        "request_id": "req_1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "strategy": "skeleton",
        "model": "M@skeleton",
        "stream": False,
        "wall_ms": 4000.0,
        "first_byte_ms": 1234.6,
        "branches": 4,
        "prompt": 130,
        "cached": 20,
        "completion": 52,
        "wasted": 0,
        "error_code": None,
        "owner": digest("secret")[:8],
    }


def test_a_request_that_passes_through(lines: Lines) -> None:
    """What is not known of it is null, not 0."""
    configure("json")
    passed_through([AccessLog()], stream=True)
    line = lines.json()
    assert (line["strategy"], line["stream"], line["ts"]) == ("none", True, "2027-01-15T08:00:00.250Z")
    assert [line[name] for name in ("branches", "prompt", "cached", "completion", "wasted", "owner")] == [
        None
    ] * 6


def test_a_client_that_goes_away(lines: Lines) -> None:
    """The line has the status 499, and what the branches had used by then."""
    configure("json")
    serve([AccessLog()], skeleton(*POINTS), strategy="skeleton", left_after_s=2.5)
    line = lines.json()
    assert (line["status"], line["branches"], line["prompt"], line["completion"]) == (499, 4, 110, 31)


def test_a_failure_counts_what_it_wrote(lines: Lines) -> None:
    """Tokens of a call that broke off were generated, and wasted."""
    configure("json")
    backend = ScriptedBackend([Reply.failing(RequestRejected("no"), after="a b c")])
    serve([AccessLog()], backend)
    line = lines.json()
    assert (line["status"], line["branches"], line["completion"], line["wasted"]) == (400, 1, 3, 3)


def test_another_attempt_is_no_branch(lines: Lines) -> None:
    """A call that was tried again is one branch; cached tokens are never more than those of the prompt."""
    configure("json")
    odd = Reply(chunks=("a",), prompt_tokens=10, cached_tokens=12)
    serve([AccessLog()], ScriptedBackend([Reply.failing(BackendUnavailable("gone")), odd]))
    line = lines.json()
    assert (line["branches"], line["prompt"], line["cached"]) == (1, 10, 10)


def test_each_choice_counts(lines: Lines) -> None:
    """n = 3 is one line, with the tokens of three runs."""
    configure("json")
    serve([AccessLog()], ScriptedBackend(lambda _: Reply.of("a b")), n=3)
    line = lines.json()
    assert (line["branches"], line["completion"], line["prompt"]) == (3, 6, 30)


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_request_cannot_write_lines(lines: Lines, form: access.Format) -> None:
    """Line breaks, quotes and terminal sequences in what a client sends are escaped, and it is cut to a length."""
    configure(form)
    passed_through([AccessLog()], model=HOSTILE, path="/v1/x\ny", error_code="a b\n")
    passed_through([AccessLog()], model="x" * 100_000, method="G" * 1000, path="/" * 100_000)
    first, second = lines()
    assert first.isascii()
    assert first.isprintable()
    assert '\\n{\\"status\\":200}' in first
    assert len(second) < 1500


def test_nothing_secret_is_in_a_line(lines: Lines) -> None:
    """No prompt, no answer, no key."""
    configure("json")
    serve([AccessLog()], skeleton(*POINTS), strategy="skeleton", owner=digest("secret"))
    (line,) = lines()
    assert QUESTION not in line
    assert "three" not in line
    assert "secret" not in line
    assert digest("secret") not in line


def test_text_for_people(lines: Lines) -> None:
    """As text a line begins with time, status and request, and leaves out what is not known."""
    configure("text")
    passed_through([AccessLog()], model='a "model"')
    (line,) = lines()
    assert line == (
        "2027-01-15T08:00:00.250Z 200 POST /v1/chat/completions request_id=req_2 strategy=none"
        ' model="a \\"model\\"" stream=false wall_ms=500.0 first_byte_ms=200.0'
    )


def test_levels(lines: Lines) -> None:
    """Failures are warnings, probes are for debugging; a level leaves out what is below it."""
    configure("json")
    log = AccessLog()
    passed_through([log], path="/health")
    assert lines() == []
    configure("json", "warning")
    passed_through([log], status=404)
    assert lines() == []
    passed_through([log], status=502)
    passed_through([log], status=200, error_code="bad_gateway")
    assert len(lines()) == 2
    configure("none")
    passed_through([log], status=502)
    assert lines() == []


def test_configuring_again_does_not_double_lines(lines: Lines) -> None:
    """The last call counts, and nothing goes to the root logger as well."""
    configure("text")
    configure("json")
    passed_through([AccessLog()])
    assert lines.json()["status"] == 200
    assert not access.log.propagate


def test_without_configuration_a_line_is_json(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever handler a program has set up gets a line of JSON."""
    with caplog.at_level(logging.INFO, "anabranch.access"):
        passed_through([AccessLog()])
    assert json.loads(caplog.messages[0])["request_id"] == "req_2"
