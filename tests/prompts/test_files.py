"""Every prompt file renders, and none is without a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import anabranch
from anabranch import prompts
from anabranch.strategies.outline import Point

SAMPLES: dict[str, object] = {
    "question": "What are good habits? {{ not a variable }}",
    "problem": "What is 2 + 3?",
    "max_points": 5,
    "outline": "1. Sleep\n2. Walk",
    "number": 2,
    "title": "Walk",
    "first": "Add 2 and 3: 5.",
    "second": "2 + 3 = 5",
    "step": "So it is 5.",
    "earlier": [(Point(number=1, title="Sleep"), "Eight hours.")],
}


@pytest.mark.parametrize("name", prompts.names())
def test_every_file_renders(name: str) -> None:
    """With a value for each variable, every message has text, the question is in it where it is a variable, and no template syntax is left."""
    prompt = prompts.load(name)
    messages = prompt.render(**{variable: SAMPLES[variable] for variable in prompt.variables})
    texts = [message.text for message in messages]
    assert all(text == text.strip() and text for text in texts)
    whole = "\n".join(texts)
    assert "question" not in prompt.variables or str(SAMPLES["question"]) in whole
    assert not re.search(r"\{[{%#]|[%#}]\}\}", whole.replace(str(SAMPLES["question"]), ""))
    assert prompt.purpose
    assert prompt.source


def test_every_file_is_used() -> None:
    """Each file's name stands in the code, and each name that a strategy asks for is a file."""
    folder = Path(anabranch.__file__).parent
    used = [path for part in ("strategies", "cli") for path in (folder / part).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in used)
    assert [name for name in prompts.names() if f'"{name}"' not in code] == []
    assert set(re.findall(r"\.prompt\(\s*\"([^\"]+)\"", code)) <= set(prompts.names())


def test_the_point_prompt_without_earlier_points_has_no_trace_of_them() -> None:
    """Where nothing was written before, nothing is said of it, and no gap is left."""
    point = prompts.load("skeleton/point")
    values = {variable: SAMPLES[variable] for variable in point.variables}
    text = point.render(**{**values, "earlier": []})[0].text
    assert "Already written" not in text
    assert "\n\n\n" not in text
    assert "1. Sleep: Eight hours." in point.render(**values)[0].text
