"""The scheduler's pure parts: fair order, and a limit that adapts."""

from __future__ import annotations

import pytest

from anabranch.orchestrator.scheduler.queueing import AdaptiveLimit, FairQueue


def drain(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_runs_take_turns_whatever_they_queued() -> None:
    """A run with a thousand calls does not hold up one with three."""
    queue: FairQueue[str] = FairQueue()
    for index in range(1000):
        queue.push(f"big{index}", run="big")
    for index in range(3):
        queue.push(f"small{index}", run="small")
    order = drain(queue)
    assert [item for item in order[:7] if item.startswith("small")] == ["small0", "small1", "small2"]
    assert len(order) == 1003


def test_a_run_that_comes_back_has_no_credit_saved() -> None:
    """Idle time earns nothing: a newcomer starts at the present, not in the past."""
    queue: FairQueue[str] = FairQueue()
    for index in range(50):
        queue.push(f"a{index}", run="a")
    for _ in range(40):
        queue.pop()
    for index in range(10):
        queue.push(f"b{index}", run="b")
    assert sum(item.startswith("b") for item in [queue.pop() for _ in range(10)]) == 5


def test_priority_goes_first_within_a_run() -> None:
    """Higher priority first, then first come first served."""
    queue: FairQueue[str] = FairQueue()
    for item, priority in [("low", 1.0), ("high", 9.0), ("low2", 1.0)]:
        queue.push(item, run="r", priority=priority)
    assert drain(queue) == ["high", "low", "low2"]


def test_siblings_keep_together() -> None:
    """Calls of one fork go out next to each other, though they were queued in between others'."""
    queue: FairQueue[str] = FairQueue()
    for item in ["a1", "b1", "a2", "b2"]:
        queue.push(item, run="r", group=item[0])
    assert drain(queue) == ["a1", "a2", "b1", "b2"]


def test_the_limit_grows_only_while_it_holds_calls_back() -> None:
    """Success below the limit says nothing about what the server can take."""
    limit = AdaptiveLimit(start=4, most=100)
    limit.succeeded(in_flight=2)
    assert limit.value == 4
    limit.succeeded(in_flight=4)
    assert limit.value == 5


def test_the_limit_halves_once_for_a_burst_of_rejections() -> None:
    """Calls that set out before the cut do not cut again; one that set out later does."""
    limit = AdaptiveLimit(start=16, most=100)
    for _ in range(10):
        limit.overloaded(started_at=0.0, now=1.0)
    assert limit.value == 8
    limit.overloaded(started_at=2.0, now=3.0)
    assert limit.value == 4


def test_the_limit_never_freezes_and_recovers() -> None:
    """It stays at one or more under constant rejection, and grows again afterwards, more slowly than at first."""
    limit = AdaptiveLimit(start=16, most=100)
    for step in range(20):
        limit.overloaded(started_at=float(step), now=float(step) + 0.5)
    assert limit.value == 1
    for _ in range(12):
        limit.succeeded(in_flight=limit.value)
    assert 4 <= limit.value <= 6


def test_a_queueing_server_stops_the_growth() -> None:
    """Where the server itself queues, more calls in flight gain nothing."""
    limit = AdaptiveLimit(start=4, most=100)
    limit.succeeded(in_flight=4, queued=True)
    limit.succeeded(in_flight=4)
    assert limit.value == 4


def test_the_cap_holds() -> None:
    """The limit never passes what the server can take."""
    limit = AdaptiveLimit(start=64, most=1000)
    limit.cap(8)
    limit.succeeded(in_flight=8)
    assert limit.value == 8


def test_an_empty_queue_raises() -> None:
    """Taking from an empty queue is an error."""
    with pytest.raises(IndexError):
        FairQueue[str]().pop()


def test_newcomers_do_not_starve_a_run_that_waits() -> None:
    """However many new runs keep coming, a run of ten gets its share."""
    queue: FairQueue[str] = FairQueue()
    for index in range(10):
        queue.push(f"old{index}", run="old")
    served = []
    for index in range(200):
        while len(queue) < 15:
            queue.push(f"new{index} {len(queue)}", run=f"new{index} {len(queue)}")
        served.append(queue.pop())
    assert sum(item.startswith("old") for item in served) == 10


def test_what_is_removed_leaves_no_place() -> None:
    """Given-up items count no longer, and are passed over."""
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1"):
        queue.push(item, run=item[0])
    for item in ("a1", "a3", "b1", "b1"):
        queue.remove(item)
    assert drain(queue) == ["a2"]
