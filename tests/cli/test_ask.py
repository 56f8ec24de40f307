"""`anabranch ask`: what stands on which stream, and the exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from anabranch.cli.app import run
from anabranch.orchestrator import orchestrator
from anabranch.orchestrator.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    ContextTooLong,
)
from anabranch.orchestrator.trace import read_trace
from anabranch.testing import Reply, ScriptedBackend

KEYS = [
    "text",
    "reasoning",
    "strategy",
    "active",
    "fell_back",
    "warnings",
    "figures",
    "run_id",
    "finish_reason",
    "usage",
    "timing",
    "model",
]
Answering = Callable[[Iterable[Reply]], ScriptedBackend]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKEND", "STRATEGY", "MODEL", "DEBUG"):
        monkeypatch.delenv(f"ANABRANCH_{name}", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Makes every backend URL stand for one scripted backend with these replies."""

    def set_up(replies: Iterable[Reply]) -> ScriptedBackend:
        backend = ScriptedBackend(replies)
        monkeypatch.setattr(orchestrator, "open_backend", lambda url: backend)
        return backend

    return set_up


def ask(*arguments: str) -> int:
    return run(["ask", "-b", "scripted:", "-s", "sequential", *arguments])


def test_piped_output_is_the_answer_and_nothing_else(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a standard output that is no terminal stands the text, to the letter, with one line end."""
    answering([Reply.of("Paris\x1b[1m is\n\nit.")])
    assert ask("Capital of France?") == 0
    assert capsys.readouterr() == ("Paris\x1b[1m is\n\nit.\n", "")


def test_the_server_that_is_named_is_the_one_that_the_key_is_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What --backend says stands in the environment where keys are looked up, in place of what stood there."""
    monkeypatch.setenv("ANABRANCH_BACKEND", "sglang://other")
    answering([Reply.of("Paris.")])
    assert ask("Capital of France?") == 0
    assert os.environ["ANABRANCH_BACKEND"] == "scripted:"


def test_json_is_one_object_with_stable_keys(answering: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints exactly one line: an object with the published keys, in their order."""
    answering([Reply.of("Paris.\u2028ü")])
    assert ask("Capital of France?", "--json") == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    answer = json.loads(out)
    assert list(answer) == KEYS
    assert answer["text"] == "Paris.\u2028ü"
    assert answer["usage"]["branches"] == 1


def test_the_question_may_come_from_standard_input(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads the question, and one that is not UTF-8 is a usage error."""
    backend = answering([Reply.of("x")])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Wie spät?\n".encode())))
    assert ask("-") == 0
    assert backend.calls[0].call.branch.question == "Wie spät?\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert ask("-") == 2


def test_options_reach_the_call(answering: Answering) -> None:
    """Model, sampling and the cap on tokens arrive at the backend as they were given."""
    backend = answering([Reply.of("x")])
    assert ask("q", "-m", "m7", "--temperature", "0.5", "--seed", "7", "--max-tokens", "9") == 0
    call = backend.calls[0].call
    assert (call.model, call.sampling.temperature, call.sampling.seed, call.max_tokens) == ("m7", 0.5, 7, 9)


def test_the_environment_fills_in_what_is_left_out(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANABRANCH_MODEL and ANABRANCH_STRATEGY stand for their options; the option wins."""
    backend = answering([Reply.of("x"), Reply.of("y")])
    monkeypatch.setenv("ANABRANCH_BACKEND", "scripted:")
    monkeypatch.setenv("ANABRANCH_MODEL", "from-env")
    monkeypatch.setenv("ANABRANCH_STRATEGY", "sequential")
    assert run(["ask", "q"]) == 0
    assert run(["ask", "q", "--model", "given"]) == 0
    assert [log.call.model for log in backend.calls] == ["from-env", "given"]


def test_without_a_server_it_says_that_the_embedded_model_answers(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing configured: a line on standard error says what answers, and the answer comes."""
    answering([Reply.of("Paris.")])
    assert run(["ask", "q", "-s", "sequential"]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert "embedded model" in err
    assert err.count("\n") == 1


def test_an_answer_cut_by_the_budget_has_its_own_exit_code(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    """What there was is printed, the reason is told, and the code is 3."""
    answering([Reply.of("one two three four")])
    assert ask("q", "--budget-tokens", "2") == 3
    out, err = capsys.readouterr()
    assert out.startswith("one two")
    assert "tokens" in err


def test_a_deadline_cuts_the_answer(answering: Answering) -> None:
    """A model that hangs does not keep the caller longer than the deadline."""
    answering([Reply.hanging("one two")])
    assert ask("q", "--deadline", "0.3") == 3


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (BackendUnavailable("h: connection refused", retryable=False), "is the server running"),
        (AuthenticationFailed("who are you?"), "OPENAI_API_KEY"),
        (ContextTooLong("4096 tokens"), "shorten"),
    ],
)
def test_a_failed_run_is_one_line_with_the_fix(
    answering: Answering, capsys: pytest.CaptureFixture[str], error: BackendError, fix: str
) -> None:
    """What went wrong and what to do stand on one line of standard error; the code is 1, no traceback."""
    answering([Reply.failing(error)])
    assert ask("q", "--json") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("anabranch: error: ")
    assert err.count("\n") == 1
    assert fix in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask"],
        ["ask", "q", "--nonsense"],
        ["ask", "q", "-b", "nonsense:"],
        ["ask", "q", "-b", "scripted:", "-s", "nonsense"],
        ["ask", "q", "-b", "scripted:", "-s", "sequential", "-p", "nonsense=1"],
        ["ask", "q", "-b", "scripted:", "-s", "sequential", "-p", "nonsense"],
        ["ask", "q", "-b", "scripted:", "-s", "sequential", "--role", "judge"],
        ["ask", "q", "-b", "scripted:", "--max-tokens", "0"],
        ["ask", "q", "-b", "scripted:", "-s", "sequential", "--deadline", "0"],
        ["ask", " ", "-b", "scripted:", "-s", "sequential"],
        ["ask", "q", "-b", "scripted:", "-s", "sequential", "--trace", "/nonexistent/folder/x.jsonl"],
        ["trace", "/nonexistent.jsonl"],
        ["strategies", "nonsense"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command that cannot work ends with 2 and a line that says what to change."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("anabranch: error: ")
    assert err.count("\n") == 1


def test_a_trace_is_written_and_drawn(
    answering: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--trace writes the whole run; `anabranch trace` prints it and draws it."""
    answering([Reply.of("one two three")])
    file, svg, html = tmp_path / "run.jsonl.gz", tmp_path / "run.svg", tmp_path / "run.html"
    assert ask("Count!", "--trace", str(file)) == 0
    assert gzip.decompress(file.read_bytes())
    events = read_trace(file)
    assert (events[0].type, events[-1].type) == ("run_started", "run_finished")
    capsys.readouterr()
    assert run(["trace", str(file), "--svg", str(svg), "--html", str(html)]) == 0
    out, _ = capsys.readouterr()
    assert "Count!" in out
    assert "✓ answer" in out
    assert svg.read_text("utf-8").startswith("<svg")
    assert html.read_text("utf-8").startswith("<!doctype html>")


def test_the_tree_goes_to_standard_error_when_the_answer_is_piped(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    """--show with a piped answer: the text alone on standard output, the chart on standard error."""
    answering([Reply.of("one two")])
    assert ask("q", "--show") == 0
    out, err = capsys.readouterr()
    assert out == "one two\n"
    assert "✓ answer" in err
    assert "1 branch · work 2 tok" in err


def test_debug_shows_where_an_error_came_from(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    """ANABRANCH_DEBUG=1 lets the error through."""
    answering([Reply.failing(ContextTooLong("too long"))])
    monkeypatch.setenv("ANABRANCH_DEBUG", "1")
    with pytest.raises(ContextTooLong):
        ask("q")


# In a process of its own, with a backend that hangs after some text and says on standard error how its call ended.

DRIVER = """
import atexit, sys
from anabranch.cli import app
from anabranch.orchestrator import orchestrator
from anabranch.testing import Reply, ScriptedBackend
backend = ScriptedBackend(lambda call: {reply})
orchestrator.open_backend = lambda url: backend
atexit.register(lambda: print("CALLS", [log.state for log in backend.calls], file=sys.stderr))
app.main()
"""


def command(reply: str, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        DRIVER.format(reply=reply),
        "ask",
        "q",
        "-b",
        "x:",
        "-s",
        "sequential",
        *arguments,
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_on_the_server_too(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM cancel the call, finish the trace, and end with their code and no traceback."""
    trace = tmp_path / "run.jsonl"
    hanging = 'Reply.hanging("some words")'
    with subprocess.Popen(
        command(hanging, "--trace", str(trace)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == "some words"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == "\n"
    assert "Traceback" not in err
    assert "CALLS ['closed']" in err
    assert read_trace(trace)[-1].type == "run_finished"


def test_a_reader_that_goes_away_ends_the_run() -> None:
    """When the pipe breaks, as with `| head`, the run is stopped without a word."""
    words = 'Reply.of("word " * 500, chunk_s=0.01)'
    with subprocess.Popen(command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.read(4)
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 141
    assert err == "CALLS ['closed']\n"


def on_terminal(arguments: list[str]) -> tuple[int, str]:
    """Run a command on a terminal of its own; its exit code, and all that reached the terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(arguments, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            seen += os.read(leader, 65536)
        except OSError:
            break
    os.close(leader)
    return process.wait(timeout=60), seen.decode("utf-8", "replace")


def test_on_a_terminal_the_branches_are_seen_while_they_run() -> None:
    """The tree is redrawn as the run goes on; then come the answer and one line of figures."""
    code, seen = on_terminal(command('Reply.of("one two three four five", chunk_s=0.2)'))
    assert code == 0
    assert "● " in seen
    assert "✓ " in seen
    assert seen.count("sequential") > 2
    assert "1 branch" in seen
    assert "work 5 tok" in seen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert "one two three four five" in plain


@pytest.mark.parametrize("show", ["--show", "--no-show"])
def test_escape_sequences_of_a_model_never_reach_the_terminal(show: str) -> None:
    """A model cannot set the window's title, colours, or markup, whether the tree is shown or not."""
    evil = r"Reply.of('\x1b]0;owned\x07 [bold]\x1b[35mtext\x9b5m', chunk_s=0.2)"
    code, seen = on_terminal(command(evil, show))
    assert code == 0
    for sequence in ("\x1b]0;", "\x07", "\x1b[35m", "\x9b"):
        assert sequence not in seen
    assert "[bold]␛[35mtext" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
