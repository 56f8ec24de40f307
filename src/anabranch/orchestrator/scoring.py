"""Scoring: which of a few labels would the model say next? A judgement in one token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.sampling import Sampling

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run

PLAIN_TOKENS = 8
"""Completion tokens that a judge may use where the backend cannot score labels."""


async def score(run: Run, branch: Branch, labels: Sequence[str], *, role: str) -> dict[str, float]:
    """See `Run.score`."""
    if len(set(labels)) < 2 or not all(labels):
        raise InvalidParameter("labels", f"needs at least two different, non-empty texts, got {list(labels)}")
    greedy = Sampling(temperature=0.0)
    if (await run.capabilities(role)).labels:
        scored = await run.generate(
            branch, role=role, label="score", labels=labels, max_tokens=1, sampling=greedy
        )
        scored.check_whole("a judgement")
        return softmax(scored.label_logprobs or {}, labels)
    written = await run.generate(branch, role=role, label="judge", max_tokens=PLAIN_TOKENS, sampling=greedy)
    written.check_whole("a judgement")
    return one_hot(written.text, labels)


def softmax(logprobs: Mapping[str, float], labels: Sequence[str]) -> dict[str, float]:
    """Probabilities over the labels; one that is missing gets none."""
    values = {label: logprobs.get(label, -math.inf) for label in labels}
    top = max(values.values())
    if top == -math.inf:
        return dict.fromkeys(labels, 1.0 / len(labels))
    weights = {label: math.exp(value - top) for label, value in values.items()}
    total = sum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def one_hot(text: str, labels: Sequence[str]) -> dict[str, float]:
    """All probability to the longest label that the text begins with, case and leading marks aside."""
    said = text.strip().strip("\"'*([").casefold()
    matching = [label for label in labels if said.startswith(label.strip().casefold())]
    if not matching:
        return dict.fromkeys(labels, 1.0 / len(labels))
    best = max(matching, key=len)
    return {label: float(label == best) for label in labels}
