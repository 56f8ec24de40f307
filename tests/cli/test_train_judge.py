"""`anabranch train-judge`: from a recording to a judge that best_of_n takes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from anabranch.cli.app import run
from anabranch.serving.recordings import Trace, write
from anabranch.strategies.best_of_n import BestOfN
from anabranch.strategies.best_of_n.judging import Judge


def recording(path: Path, problems: int = 24) -> Path:
    """Traces that come to one of two answers, which their numbers tell early on."""
    draw = random.Random(1)
    made = []
    for problem in range(problems):
        for sample in range(6):
            base = draw.choice((3, 8))
            steps = " ".join(
                f"Then {base * step + problem} + {base} = {base * (step + 1) + problem}." for step in range(9)
            )
            text = f"{steps} So it is \\boxed{{{base * 9 + problem}}}."
            made.append(
                Trace(
                    id=f"p{problem}",
                    problem=f"problem {problem}",
                    sample=sample,
                    text=text,
                    finish_reason="stop",
                )
            )
    write(path, made)
    return path


def test_a_judge_from_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed how good it is; it tells pairs apart that differ as those did; best_of_n takes it."""
    out = tmp_path / "judge.json"
    assert run(["train-judge", str(recording(tmp_path / "traces.jsonl")), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "AUROC, problems held out: [" in printed
    judge = Judge.from_json(out.read_text(encoding="utf-8"))
    area = judge.about["AUROC, problems held out"][0]
    assert area > 0.8
    alike = judge("Then 3 + 3 = 6. Then 6 + 3 = 9.", "Then 3 + 3 = 6. Then 6 + 3 = 9. Then 9 + 3 = 12.")
    unlike = judge("Then 3 + 3 = 6. Then 6 + 3 = 9.", "Then 8 + 8 = 16. Then 16 + 8 = 24.")
    assert alike > unlike
    BestOfN(prune=("redundant",), judge=out).pruning()


def test_too_few_problems_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is lacking, and nothing is written."""
    out = tmp_path / "judge.json"
    assert run(["train-judge", str(recording(tmp_path / "traces.jsonl", problems=1)), "--out", str(out)]) == 2
    assert "problems" in capsys.readouterr().err
    assert not out.exists()


def test_a_judge_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With the command that makes one."""
    with pytest.raises(ValueError, match="train-judge"):
        BestOfN(prune=("redundant",), judge=tmp_path / "none.json")
