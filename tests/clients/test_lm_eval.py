"""`lm_eval --model local-chat-completions` on a few items of GSM8K."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import Proxy
from clients.prepare import PREPARE_COMMAND, client_python

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

TASK = """
task: gsm8k_few
dataset_path: json
dataset_kwargs: {{data_files: {{test: {items}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["Question:", "</s>", "<|im_end|>"]
  do_sample: false
  temperature: 0.0
  max_gen_toks: 32
filter_list:
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
"""GSM8K as lm_eval's own task has it, without its examples and with items from a file."""


def evaluate(
    proxy: Proxy, model: str, items: Path, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the task with a model; its results and its samples."""
    python = client_python("lm_eval")
    if python is None:
        pytest.skip(f"lm_eval is not prepared: {PREPARE_COMMAND}")
    (folder / "gsm8k_few.yaml").write_text(TASK.format(items=items))
    out = folder / "out"
    arguments = f"model={model},base_url={proxy.base_url}/chat/completions,num_concurrent=3,max_retries=1"
    command = [python, "-m", "lm_eval", "--model", "local-chat-completions", "--model_args", arguments]
    command += ["--apply_chat_template", "--include_path", folder, "--tasks", "gsm8k_few"]
    command += ["--output_path", out, "--log_samples"]
    offline = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **offline, "OPENAI_API_KEY": "EMPTY"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next(out.rglob("results_*.json")).read_text())
    samples = next(out.rglob("samples_*.jsonl")).read_text().splitlines()
    return results, [json.loads(line) for line in samples]


@pytest.mark.parametrize("strategy", [False, True], ids=["plain", "skeleton"])
def test_gsm8k(proxy: Proxy, gsm8k: Path, tmp_path: Path, strategy: bool) -> None:
    """All items are answered and scored. (A skeleton, which does not suit calculations, has them decoded plainly.)"""
    model = proxy.strategy_model if strategy else proxy.model
    results, samples = evaluate(proxy, model, gsm8k, tmp_path)
    assert "exact_match,flexible-extract" in results["results"]["gsm8k_few"]
    assert len(samples) == 3
    assert all(sample["resps"][0][0].strip() for sample in samples)
