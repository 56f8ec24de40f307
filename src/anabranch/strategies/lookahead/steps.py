"""Steps: where one ends, which count, and when two are the same. Pure.

A step is what a model writes up to a boundary, as a rule a blank line. One that a cap cut is half a step, and is never
taken from a draft.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.generation import Generation

THINK_END = "</think>"
"""Where reasoning ends in the text of models whose server does not report it apart."""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of an answer.

    Attributes:
        text: what it says, reasoning included, without its boundary.
        branch: the place behind it.
        whole: it ends at a boundary, or is the last one.
        final: the answer ends with it.
        closes_reasoning: the model's reasoning ends within it.
        generation: the call that wrote it; None for a draft that no model wrote.
        tokens: completion tokens.
        finish_reason: how the answer ends, where it is the last one.
    """

    text: str
    branch: Branch
    whole: bool = True
    final: bool = False
    closes_reasoning: bool = False
    generation: Generation | None = None
    tokens: int = 0

    @property
    def empty(self) -> bool:
        """Whether it says nothing, and is not the end."""
        return not self.final and not self.text.strip()

    def same_as(self, text: str) -> bool:
        """Whether it says the same, but for white space and case."""
        return normalised(self.text) == normalised(text) != ""


def normalised(text: str) -> str:
    """Text without what makes no difference in meaning: white space and case (Lookahead Reasoning's first check)."""
    return "".join(text.split()).casefold()


def numbers(text: str) -> tuple[str, ...]:
    """The numbers in a text, in order, written in one way: `1,260.0` and `1260` are the same."""
    return tuple(_plain(found.replace(",", "")) for found in _NUMBER.findall(text))


def _plain(digits: str) -> str:
    whole, point, rest = digits.partition(".")
    return (whole.lstrip("0") or "0") + (point + rest).rstrip("0").rstrip(".")


def step_of(generation: Generation, boundary: str) -> Step:
    """The step that a generation wrote; the generation was told to stop at the boundary.

    A step that ends by itself, or at a stop string of the caller's, is the last one.
    """
    at_boundary = generation.matched == boundary
    return Step(
        text=generation.reasoning + generation.text,
        branch=generation.branch,
        whole=generation.complete,
        final=generation.complete and not at_boundary,
        closes_reasoning=THINK_END in generation.text or bool(generation.reasoning and generation.text.strip()),
        generation=generation,
        tokens=generation.usage.completion,
    )
