"""Traces for tests of best-of-N's rules, written as one letter for each answer."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.strategies.best_of_n.rules import StoppingRule, Trace


def traces(answers: str) -> list[Trace]:
    """A trace for each letter, of 100 tokens; a dash is a trace without an answer."""
    return [
        Trace(number=number, answer=None if letter == "-" else letter, tokens=100)
        for number, letter in enumerate(answers)
    ]


def scored(*scores: float | None) -> list[Trace]:
    """A trace for each score."""
    return [Trace(number=number, score=score) for number, score in enumerate(scores)]


def used(rule: StoppingRule, pool: Sequence[Trace]) -> int:
    """How many traces of a pool the rule takes, in this order, when each lot that it wants is waited for."""
    ended = 0
    while (wanted := min(rule.wanted(pool[:ended]), len(pool))) > ended:
        ended = wanted
    return ended
