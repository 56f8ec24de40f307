"""Converts recordings of others into the format that `replay:` plays (docs/recordings.md).

    python benchmarks/convert_traces.py qwen_math100x8_rm.jsonl.gz math.jsonl.gz
    python benchmarks/convert_traces.py tot_game24_gpt4_cot_100x100.jsonl.gz game24.jsonl.gz

Both have one problem a line with its `samples`: texts with a reward model's scores (Qwen2.5-Math), or chains of thought
(tree-of-thought-llm). Neither says how many tokens a text had, so `characters` is given and `tokens` is not. Whether a trace
is right, and what the file says of source and licence, is kept under keys of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anabranch.serving.recordings import Trace, write

_KEPT = ("source", "licence", "level")


def convert(path: Path) -> Iterator[Trace]:
    """The traces of a file, by problem and sample. Raises ValueError where a line is of neither kind."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line)
            if not row.keys() >= {"id", "problem", "samples"}:
                raise ValueError(f"{path}, line {number}: needs id, problem and samples")
            for index, sample in enumerate(row["samples"]):
                yield trace(row, index, sample)


def trace(row: Mapping[str, Any], index: int, sample: Mapping[str, Any]) -> Trace:
    """One sample of a problem; `s` is its number where it has one, `rm_score` its score."""
    optional = {
        "answer": row.get("answer"),
        "answer_given": sample.get("answer"),
        "score": sample.get("rm_score"),
        "correct": sample.get("correct"),
        **{name: row.get(name) for name in _KEPT},
    }
    return Trace(
        id=row["id"],
        problem=row["problem"],
        sample=sample.get("s", index),
        text=sample["text"],
        characters=len(sample["text"]),
        **{name: value for name, value in optional.items() if value is not None},
    )


def main() -> None:
    """Convert the file that the command line names."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("source", type=Path, help="JSON lines, compressed")
    options.add_argument("target", type=Path, help="where the traces go; .gz compresses")
    given = options.parse_args()
    write(given.target, convert(given.source))


if __name__ == "__main__":
    main()
