"""`anabranch ask` on the embedded engine and its real model, as on a machine where nothing is set up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.orchestrator.trace import read_trace
from anabranch.serving.backends.local.models import cache_folder, find

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(find(cache_folder(os.environ)) is None, reason="the embedded model is not in the cache"),
]


def test_the_first_command_of_the_readme(tmp_path: Path) -> None:
    """Without any set-up, a question becomes an outline and its points on a real model; all figures are there."""
    pytest.importorskip("xllamacpp", reason="the embedded engine is not installed")
    trace = tmp_path / "run.jsonl"
    unset = ("ANABRANCH_BACKEND", "ANABRANCH_STRATEGY", "ANABRANCH_MODEL", "OPENAI_BASE_URL")
    ask = [sys.executable, "-m", "anabranch", "ask", "What are the benefits of regular exercise?", "--json"]
    done = subprocess.run(
        [*ask, "--max-tokens", "200", "--seed", "1", "--trace", str(trace)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name not in unset},
        timeout=100,
    )
    answer = json.loads(done.stdout)
    assert (answer["strategy"], answer["active"], answer["fell_back"]) == ("skeleton", True, None)
    assert answer["text"].strip()
    usage = answer["usage"]
    assert usage["branches"] >= 3
    assert usage["work"] > usage["span"] > 0
    assert usage["cached"] > 0
    assert 0 < answer["timing"]["first_token_s"] < answer["timing"]["wall_s"]
    assert answer["model"].startswith("SmolLM2")
    assert "embedded model" in done.stderr
    assert read_trace(trace)[-1].type == "run_finished"
