"""How likely each label comes next, from the alternatives of one token. Pure.

White space around tokens and labels does not count, case does: " Yes" and "Yes" are one, "yes" is another, and the
probabilities of such variants add up. Of a label that is longer than a token the first token counts: a token that
begins several labels counts for each of them. A label that is not among the alternatives gets the log-probability of
the least likely alternative, which is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.orchestrator.backend import TokenLogprob


def label_logprobs(labels: Sequence[str], token: TokenLogprob) -> dict[str, float]:
    """The log-probability of each label."""
    alternatives = dict(token.top) or {token.token: token.logprob}
    least = min(alternatives.values())
    return {label: _total(_matching(label.strip(), alternatives), least) for label in labels}


def _matching(label: str, alternatives: dict[str, float]) -> list[float]:
    """Log-probabilities of the tokens that are the label; failing that, of those that begin it."""
    bare = [(text.strip(), logprob) for text, logprob in alternatives.items()]
    exact = [logprob for text, logprob in bare if text == label]
    return exact or [logprob for text, logprob in bare if text and label.startswith(text)]


def _total(logprobs: list[float], least: float) -> float:
    if not logprobs:
        return least
    top = max(logprobs)
    return top + math.log(sum(math.exp(logprob - top) for logprob in logprobs))
