"""`anabranch launch`: the command line that it prints, and its errors."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from anabranch.cli import errors
from anabranch.cli.app import run
from anabranch.orchestrator.errors import MissingExtra
from anabranch.serving import launch


@pytest.fixture(autouse=True)
def _no_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(command: Sequence[str]) -> str:
        raise MissingExtra("SGLang", "sglang")

    monkeypatch.setattr(launch, "check_flags", missing)


def test_the_command_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """--print shows what would run, with what stands behind -- at its end, and says that it was not checked."""
    arguments = [
        "launch",
        "--print",
        "--model",
        "my model",
        "--port",
        "4000",
        "--tp",
        "2",
        "--speculative",
        "ngram",
    ]
    assert run([*arguments, "--", "--log-level", "warning"]) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out)
    assert words[1:5] == ["-m", "sglang.launch_server", "--model-path", "my model"]
    assert words[-2:] == ["--log-level", "warning"]
    assert {"4000", "NGRAM", "--tp-size", "--enable-cache-report"} <= set(words)
    assert "not checked" in err


def test_a_target_and_its_draft_are_printed_with_how_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    """Two command lines that a shell takes, for different GPUs and ports; comments say the rest."""
    arguments = ["--model", "big", "--draft-server", "small", "--speculative", "ngram", "--gpus", "0,1,2"]
    assert run(["launch", "--print", *arguments]) == 0
    out = capsys.readouterr().out.splitlines()
    target, draft = (shlex.split(line) for line in out if not line.startswith("#"))
    assert target[0] == "CUDA_VISIBLE_DEVICES=0,1"
    assert draft[0] == "CUDA_VISIBLE_DEVICES=2"
    assert {"big", "30000", "NGRAM", "--tp-size", "2"} <= set(target)
    assert {"small", "30001"} <= set(draft)
    assert "NGRAM" not in draft
    assert out[-1] == (
        "# anabranch ask --backend sglang://127.0.0.1:30000 --role draft=sglang://127.0.0.1:30001 "
        "--strategy lookahead …"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "m", "--gpus", "0"], "--draft-server"),
        (["--model", "m", "--draft-server", "d", "--gpus", "0,x"], "0,1"),
        (["--model", "m", "--draft-server", "d", "--gpus", "0,0"], "different numbers"),
        (["--model", "m", "--draft-server", "d", "--tp", "2"], "--gpus 0,1,2"),
        (["--model", "m", "--draft-server", "d", "--port", "65535"], "65534"),
        (["--profile", "cpu", "--draft-server", "tiny", "--gpus", "0"], "the profile cpu uses none"),
        (["--print"], "model"),
        (["--profile", "nonsense"], "unknown profile"),
        (["--build"], "--profile cpu"),
        (["--model", "m", "--speculative", "EAGLE3"], "draft model"),
        (["--model", "m", "--port", "0"], "--port"),
        (["--model", "m"], "pip install 'anabranch[sglang]'"),
    ],
)
def test_what_cannot_work_is_told(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong options, and a server that is not installed, are one line with the fix and code 2."""
    assert run(["launch", *arguments]) == errors.USAGE
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (3, 1), (130, 130)])
def test_the_servers_end_decides_on_the_exit_code(
    ended: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that fails is a failure of the command; Ctrl-C is none."""

    class Ended:
        def __init__(self, command: Sequence[str], *, url: str) -> None:
            assert url == "http://127.0.0.1:30000"

        def run(self) -> int:
            return ended

    monkeypatch.setattr(launch, "ServerProcess", Ended)
    monkeypatch.setattr(launch, "check_flags", lambda command: "0.5.23")
    assert run(["launch", "--model", "m"]) == code
    assert "sglang://127.0.0.1:30000" in capsys.readouterr().err
