"""Events: cheap values with a published schema, that survive a trace file."""

from __future__ import annotations

import json

import pytest

from anabranch.orchestrator import events
from anabranch.orchestrator.errors import InvalidParameter

EXAMPLES: list[events.Event] = [
    events.RunStarted(t=0.0, run_id="r", strategy="s", question="Ünï?", backend="b", started_at=1.5),
    events.GenerationQueued(t=0.1, id=2, parents=(1,), label="l", role="target", depth=2),
    events.GenerationStarted(t=0.2, id=2, backend="b"),
    events.GenerationDelta(t=0.3, id=2, text="日本\n", tokens=2),
    events.GenerationRetried(t=0.4, id=2, attempt=1, error="busy", delay_s=0.5),
    events.GenerationFinished(t=0.5, id=2, finish_reason="stop", prompt=3, cached=1, completion=2),
    events.GenerationFailed(t=0.6, id=2, error="boom", status_code=500),
    events.GenerationDiscarded(t=0.7, id=2, completion=2),
    events.GenerationJudged(t=0.75, id=2, accepted=False, by="rating", score=3.0),
    events.NodeChanged(t=0.8, node="a", state="ready", parents=("b",)),
    events.AnswerDelta(t=0.9, text="x"),
    events.Warned(t=1.0, message="m"),
    events.FellBack(t=1.1, reason="r"),
    events.RunFinished(t=1.2, finish_reason="stop", summary={"usage": {"work": 1}}),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_an_event_survives_a_line_of_json(event: events.Event) -> None:
    """What is written to a trace is read back as the same value."""
    line = events.to_json(event)
    assert "\n" not in line
    assert events.from_json(line) == event


def test_the_schema_names_every_event() -> None:
    """The published schema tells events apart by `type`."""
    published = events.schema()
    assert set(published["discriminator"]["mapping"]) == {event.type for event in EXAMPLES}
    assert json.dumps(published)


@pytest.mark.parametrize(
    "line", ["", "{}", '{"type":"nonsense","t":0}', "[1]", '{"type":"warned","t":"x","message":1}']
)
def test_what_is_no_event_is_refused(line: str) -> None:
    """A broken line is an error that shows it."""
    with pytest.raises(InvalidParameter, match="not an event"):
        events.from_json(line)
