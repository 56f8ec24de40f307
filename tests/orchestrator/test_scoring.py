"""Scores: which of a few labels comes next, with and without the backend's help."""

from __future__ import annotations

import pytest

from anabranch import Run
from anabranch.orchestrator.backend import Capabilities
from anabranch.testing import Reply, ScriptedBackend
from engine import ask


def test_labels_are_scored_in_one_call() -> None:
    """The probabilities are normalised over the labels."""
    backend = ScriptedBackend([Reply(label_logprobs={"A": -1.0, "B": -1.0, "C": -50.0})])

    async def work(run: Run) -> None:
        scores = await run.score(run.question, ("A", "B", "C"))
        assert scores["A"] == pytest.approx(0.5)
        assert scores["C"] < 1e-9

    ask(backend, work)
    assert backend.calls[0].call.labels == ("A", "B", "C")


@pytest.mark.parametrize(("said", "winner"), [("B) because", "B"), (" a", "A"), ("dunno", None)])
def test_without_label_scores_the_model_is_asked_in_plain_words(said: str, winner: str | None) -> None:
    """The label that the reply begins with gets all; with none, nobody is preferred."""
    backend = ScriptedBackend([Reply.of(said)], capabilities=Capabilities())

    async def work(run: Run) -> None:
        scores = await run.score(run.question, ("A", "B"))
        expected = (
            {"A": 0.5, "B": 0.5} if winner is None else {"A": float(winner == "A"), "B": float(winner == "B")}
        )
        assert scores == expected

    ask(backend, work)
