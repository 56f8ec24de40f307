"""`anabranch record`: what is written, what is asked again, what is said; and played back, from a real model, too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from anabranch import Generation, Orchestrator, Run, Sampling
from anabranch.cli.app import run
from anabranch.orchestrator import orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.errors import BackendError, BackendTimeout
from anabranch.serving.recordings import Trace, read
from anabranch.testing import Reply, ScriptedBackend

PROBLEMS: list[dict[str, Any]] = [
    {"id": "sum", "problem": "What is 2 + 3?", "answer": "5"},
    {"id": 7, "problem": "What is 2 * 3?", "source": "mine"},
]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANABRANCH_MODEL", "ANABRANCH_DEBUG", "ANABRANCH_PROMPTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def problems(tmp_path: Path) -> str:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    return str(path)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Call], Reply]], ScriptedBackend]:
    """Stands in for the server that --backend names."""

    def answer(script: Callable[[Call], Reply]) -> ScriptedBackend:
        backend = ScriptedBackend(script)
        monkeypatch.setattr(orchestrator, "open_backend", lambda url: backend)
        return backend

    return answer


def traces(path: Path) -> dict[tuple[str, int], Trace]:
    found = list(read(path))
    assert len({(trace.id, trace.sample) for trace in found}) == len(found)
    return {(trace.id, trace.sample): trace for trace in found}


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_each_problem_gets_its_samples(
    problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With the problem as it was, what was sent, the gold answer and the sampling; progress goes to standard error."""
    out = tmp_path / name
    arguments = ["--samples", "3", "--backend", "scripted:", "--temperature", "0.5", "--max-tokens", "9"]
    assert run(["record", problems, "--out", str(out), *arguments]) == 0
    found = traces(out)
    assert sorted(found) == [(id, sample) for id in ("7", "sum") for sample in range(3)]
    trace = found["sum", 1]
    assert (trace.problem, trace.answer, found["7", 0].answer) == ("What is 2 + 3?", "5", None)
    (message,) = trace.messages or ()
    assert message["content"].startswith("What is 2 + 3?\n\n")
    assert "\\boxed{}" in message["content"]
    assert trace.sampling == {"temperature": 0.5, "max_tokens": 9}
    assert (trace.finish_reason, trace.tokens, len(trace.chunks)) == ("length", 9, 9)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "6 traces to record" in printed.err
    assert "6 of 6 traces, 54 tokens" in printed.err


def test_what_is_there_is_not_asked_again(problems: str, tmp_path: Path, answering: Any) -> None:
    """A second run with more samples asks for those alone; with all there, for nothing."""
    backend, out = answering(lambda call: Reply.of("5")), tmp_path / "t.jsonl"
    record = ["record", problems, "--out", str(out), "--backend", "x:"]
    assert run([*record, "--samples", "2", "--limit", "1"]) == 0
    assert len(backend.calls) == 2
    assert run([*record, "--samples", "3"]) == 0
    assert run([*record, "--samples", "3"]) == 0
    assert len(backend.calls) == 6 == len(traces(out))


def test_a_seed_makes_each_trace_its_own_also_on_resuming(
    problems: str, tmp_path: Path, answering: Any
) -> None:
    """All seeds differ; a trace has the same one whether it is recorded at once or later."""
    answering(lambda call: Reply.of(str(call.sampling.seed)))
    record = ["record", problems, "--backend", "x:", "--seed", "4", "--out"]
    assert run([*record, str(tmp_path / "a.jsonl"), "--samples", "4"]) == 0
    assert run([*record, str(tmp_path / "b.jsonl"), "--samples", "1"]) == 0
    assert run([*record, str(tmp_path / "b.jsonl"), "--samples", "4"]) == 0
    at_once, later = traces(tmp_path / "a.jsonl"), traces(tmp_path / "b.jsonl")
    assert {key: trace.text for key, trace in at_once.items()} == {
        key: trace.text for key, trace in later.items()
    }
    assert len({trace.text for trace in at_once.values()}) == 8


def test_a_trace_that_fails_is_a_warning_and_asked_again(
    problems: str, tmp_path: Path, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are recorded; the exit code says that something is missing, and the next run fills it."""
    failing = [True]

    def script(call: Call) -> Reply:
        if failing[0] and "2 * 3" in call.branch.question:
            return Reply.failing(BackendTimeout("too slow"), after="I th")
        return Reply.of("5")

    answering(script)
    record = ["record", problems, "--out", str(tmp_path / "t.jsonl"), "--samples", "1", "--backend", "x:"]
    assert run(record) == 1
    err = capsys.readouterr().err
    assert "warning: trace 0 of 7 failed: too slow" in err
    assert "1 trace missing in" in err
    assert set(traces(tmp_path / "t.jsonl")) == {("sum", 0)}
    failing[0] = False
    assert run(record) == 0
    assert set(traces(tmp_path / "t.jsonl")) == {("sum", 0), ("7", 0)}


def test_a_server_that_only_fails_is_not_asked_for_ever(
    problems: str, tmp_path: Path, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """After ten failures in a row the rest is left, and the server's error ends the command."""
    backend = answering(lambda call: Reply.failing(BackendError("broken", status_code=500)))
    arguments = ["--samples", "50", "--concurrency", "1", "--backend", "x:"]
    assert run(["record", problems, "--out", str(tmp_path / "t.jsonl"), *arguments]) == 1
    assert len(backend.calls) == 10
    err = capsys.readouterr().err
    assert "error: broken" in err
    assert "100 traces missing" in err


def test_failures_with_successes_between_do_not_end_it(problems: str, tmp_path: Path, answering: Any) -> None:
    """However many: only a server that fails ten times in a row is given up."""
    turns = count()
    backend = answering(
        lambda call: Reply.failing(BackendError("broken")) if next(turns) % 2 else Reply.of("5")
    )
    out = tmp_path / "t.jsonl"
    arguments = ["--samples", "15", "--concurrency", "1", "--backend", "x:"]
    assert run(["record", problems, "--out", str(out), *arguments]) == 1
    assert (len(backend.calls), len(traces(out))) == (30, 15)


def test_no_more_than_the_given_number_run_at_once(problems: str, tmp_path: Path, answering: Any) -> None:
    """--concurrency is the most, and is reached."""
    backend = answering(lambda call: Reply.of("a b c", chunk_s=0.001))
    record = ["record", problems, "--out", str(tmp_path / "t.jsonl"), "--backend", "x:"]
    assert run([*record, "--concurrency", "3"]) == 0
    assert backend.most_running == 3


@pytest.mark.parametrize(
    ("arguments", "line", "said"),
    [
        (
            ["--backend", "scripted:", "--top-logprobs", "30"],
            PROBLEMS[0],
            "20 alternatives for a token, not 30",
        ),
        (["--backend", "scripted:", "--prompt", "record/none"], PROBLEMS[0], "unknown prompt"),
        (["--backend", "scripted:"], {"id": "sum", "problem": "x"}, "id: 'sum' stands in line 1, too"),
        (["--backend", "scripted:"], {"id": "b"}, "line 3, problem: Field required; add it"),
        (["--backend", "nonsense:"], {"id": "b", "problem": "x"}, "unknown backend"),
    ],
)
def test_wrong_use_is_told_before_anything_is_asked(
    problems: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: dict[str, Any],
    said: str,
) -> None:
    """Exit code 2, and a line that says what is wrong."""
    if line is not PROBLEMS[0]:
        with open(problems, "a") as file:
            file.write(json.dumps(line) + "\n")
    assert run(["record", problems, "--out", str(tmp_path / "t.jsonl"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(problems: str, tmp_path: Path) -> None:
    """The file holds whole traces only, and the same command finishes them."""
    out = tmp_path / "slow.jsonl"
    source = tmp_path / "recorded.jsonl"
    assert run(["record", problems, "--out", str(source), "--samples", "2", "--backend", "scripted:"]) == 0
    slow = [trace.model_dump(exclude_unset=True) for trace in read(source)]
    for trace in slow:
        wait = 0.0 if trace["sample"] == 0 else 600.0
        trace["chunks"] = [{**chunk, "seconds": wait} for chunk in trace["chunks"]]
    source.write_text("".join(json.dumps(trace) + "\n" for trace in slow))
    command = [sys.executable, "-m", "anabranch", "record", problems, "--out", str(out), "--samples", "2"]
    command += ["--top-logprobs", "0", "--backend"]
    first = subprocess.Popen(
        [*command, f"replay:{source}?timing=recorded"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not (out.exists() and out.read_bytes().count(b"\n") == 3):
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130, err
    assert "2 traces missing in" in err
    assert "the same command again goes on from there" in err
    assert "Traceback" not in err
    assert len(traces(out)) == 2
    done = subprocess.run(
        [*command, f"replay:{source}"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(traces(out)) == 4


class _Sampling:
    """Asks for so many traces at once, with confidences."""

    name = "sampling"

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.generations: list[Generation] = []

    async def __call__(self, run: Run) -> None:
        lives = [run.generate(run.question, top_logprobs=20) for _ in range(self._samples)]
        self.generations = [await live for live in lives]


async def replayed(file: Path, samples: int) -> dict[str, list[Generation]]:
    found = {}
    async with Orchestrator(f"replay:{file}") as orch:
        for problem in PROBLEMS:
            strategy = _Sampling(samples)
            await orch.ask(problem["problem"], strategy=strategy, sampling=Sampling(temperature=0.1))
            found[str(problem["id"])] = strategy.generations
    return found


@pytest.mark.llama
def test_a_real_model_is_recorded_and_played(problems: str, tmp_path: Path, local_backend_url: str) -> None:
    """Same texts, token counts and confidences; the traces differ, and each token of the text has its confidence."""
    out = tmp_path / "t.jsonl.gz"
    command = [sys.executable, "-m", "anabranch", "record", problems, "--out", str(out), "--samples", "3"]
    command += ["--backend", local_backend_url, "--max-tokens", "40", "--temperature", "0.9", "--seed", "3"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "ANABRANCH_BACKEND": ""},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    recorded = traces(out)
    assert len({trace.text for trace in recorded.values()}) > 3
    played = asyncio.run(replayed(out, 3))
    for (id, sample), trace in recorded.items():
        generation = played[id][sample]
        assert trace.tokens is not None
        assert (generation.text, generation.usage.completion) == (trace.text, trace.tokens)
        assert (generation.finish_reason, generation.model) == (trace.finish_reason, trace.model)
        confidences = [value for chunk in trace.chunks for value in chunk.confidences]
        assert [-sum(value for _, value in entry.top) / 20 for entry in generation.logprobs] == pytest.approx(
            confidences
        )
        assert 0 < trace.tokens - len(confidences) + 1 <= 2  # the end of the turn has none
        assert all(value > 0 for value in confidences)
        times = [chunk.seconds for chunk in trace.chunks if chunk.seconds is not None]
        assert times == sorted(times)
        assert times[0] > 0
