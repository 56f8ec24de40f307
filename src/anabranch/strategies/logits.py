"""What strategies share that read a model's logits."""

from __future__ import annotations

import math


def sigmoid(logit: float) -> float:
    """A logit as a probability; no logit is too great."""
    return 0.5 * (1.0 + math.tanh(0.5 * logit))
