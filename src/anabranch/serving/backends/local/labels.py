"""How likely is each label to come next? Exact, also for labels of several tokens.

The log-probability of a label is the sum over its tokens. Labels that begin alike share those tokens' questions; each
question decodes one token on top of what the slot holds already.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

from anabranch.serving.backends.local.slots import Tokens

FEW = 512
"""Alternatives asked for first; the whole vocabulary takes a third of a second."""

Ask = Callable[[Tokens, int], Awaitable[Mapping[int, float]]]
"""Log-probabilities of the most likely tokens after some tokens of a label; how many is the second argument."""


async def score(labels: Mapping[str, Tokens], ask: Ask, everything: int) -> dict[str, float]:
    """The log-probability of each label, given its tokens.

    Args:
        everything: size of the vocabulary.
    """
    following: dict[Tokens, set[int]] = {}
    for tokens in labels.values():
        for length, token in enumerate(tokens):
            following.setdefault(tokens[:length], set()).add(token)
    steps: dict[Tokens, float] = {}
    for before in sorted(following, key=len):
        likely = await ask(before, min(FEW, everything))
        if not following[before] <= likely.keys():
            likely = await ask(before, everything)
        for token in following[before]:
            steps[(*before, token)] = likely.get(token, -math.inf)
    return {
        label: sum(steps[tokens[: length + 1]] for length in range(len(tokens))) if tokens else -math.inf
        for label, tokens in labels.items()
    }
