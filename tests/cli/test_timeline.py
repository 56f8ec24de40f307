"""Timeline: events in, the state of the branches out."""

from __future__ import annotations

from anabranch.cli.timeline import Timeline
from anabranch.orchestrator import events as ev


def test_the_example_ends_as_its_events_say(example: Timeline) -> None:
    """Each branch has the state, tokens and waste that its events told."""
    states = {branch.id: branch.state for branch in example.branches.values()}
    assert states == {
        1: "done",
        2: "done",
        7: "failed",
        10: "stopped",
        **dict.fromkeys([3, 4, 5, 6, 8, 9, 11], "done"),
    }
    assert example.branches[10].wasted == example.branches[10].tokens == 16
    assert example.branches[10].note == "repeats point 1"
    assert example.branches[7].attempts == 2
    assert example.finished
    assert example.tokens == example.summary["usage"]["work"]
    assert example.wasted == example.summary["usage"]["wasted"]


def test_times_come_in_their_order(example: Timeline) -> None:
    """A branch is queued, started, writes its first token and ends, in this order."""
    for branch in example.branches.values():
        assert branch.started_at is not None
        assert branch.first_token_at is not None
        assert branch.queued_at <= branch.started_at < branch.first_token_at <= branch.end(example.now)


def test_every_beginning_of_a_run_is_a_timeline(example_events: list[ev.Event]) -> None:
    """A stream may end anywhere: what runs then is shown as running, and nothing breaks."""
    timeline = Timeline()
    for event in example_events[:-1]:
        timeline.feed(event)
        for branch in timeline.branches.values():
            assert branch.ended == (branch.ended_at is not None)
            rate = branch.rate(timeline.now)
            assert rate is None or rate > 0
    assert not timeline.finished


def test_events_of_a_branch_whose_beginning_was_lost() -> None:
    """A branch that was never announced is known from its first event on."""
    timeline = Timeline.of([ev.GenerationDelta(t=2.0, id=9, text="x", tokens=3)])
    assert timeline.branches[9].tokens == 3
    assert timeline.branches[9].name == "branch 9"


def test_a_failure_keeps_its_reason() -> None:
    """That the tokens of a failed branch are discarded does not hide why it failed."""
    timeline = Timeline.of(
        [
            ev.GenerationQueued(t=0.0, id=1, parents=(), label="a", role="target", depth=1),
            ev.GenerationFailed(t=1.0, id=1, error="the server died", status_code=502),
            ev.GenerationDiscarded(t=1.0, id=1, completion=4, reason="failed"),
        ]
    )
    assert timeline.branches[1].note == "the server died"
    assert timeline.branches[1].wasted == 4


def test_usage_from_the_server_corrects_the_count() -> None:
    """The tokens of a finished branch are the server's, not the number of pieces."""
    timeline = Timeline.of(
        [
            ev.GenerationDelta(t=0.5, id=1, text="many words", tokens=1),
            ev.GenerationFinished(t=1.0, id=1, finish_reason="length", prompt=9, cached=8, completion=64),
        ]
    )
    assert (timeline.branches[1].tokens, timeline.branches[1].state) == (64, "cut")


def test_reasoning_counts_as_the_first_token() -> None:
    """A branch that thinks first has begun to write."""
    timeline = Timeline.of([ev.GenerationDelta(t=0.5, id=1, text="", tokens=1, reasoning="hm")])
    assert timeline.branches[1].first_token_at == 0.5
