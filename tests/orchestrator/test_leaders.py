"""Leaders: of calls that begin alike one goes ahead, however forks are nested."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.orchestrator.backend import PrefixSharing
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import RequestRejected
from anabranch.orchestrator.scheduler import Job, Lane
from anabranch.orchestrator.scheduler import leaders as module
from anabranch.orchestrator.scheduler.leaders import BLOCK, Leaders, blocks_of
from anabranch.serving.backends.scripted import DEFAULT_CAPABILITIES
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from lanes import job, perform_all

LONG, INNER = "What rivers do. " * 20, "What lakes do. " * 20
SLOW = Reply(chunks=("a", "b"), delay_s=2.0, chunk_s=10.0)


def backend(*replies: Reply, sharing: PrefixSharing = PrefixSharing.LEADER) -> ScriptedBackend:
    """These replies in turn; or the slow one, to all calls."""
    capabilities = replace(DEFAULT_CAPABILITIES, prefix_sharing=sharing)
    return ScriptedBackend(list(replies) or (lambda call: SLOW), capabilities=capabilities)


def started(jobs: list[Job], sharing: PrefixSharing = PrefixSharing.LEADER) -> list[tuple[str, float]]:
    """The last word of each call's question, and when it started."""
    source = backend(sharing=sharing)
    run_virtual(perform_all(Lane(source), jobs))
    return sorted((log.call.branch.question.split()[-1], log.started_at) for log in source.calls)


def test_a_leader_goes_ahead() -> None:
    """Siblings wait for the leader's first piece, not for its end; what begins otherwise does not wait."""
    jobs = [*(job(question=f"{LONG} {name}") for name in "abc"), job(question=f"{INNER} other")]
    assert started(jobs) == [("a", 0.0), ("b", 2.0), ("c", 2.0), ("other", 0.0)]


@pytest.mark.parametrize("sharing", set(PrefixSharing) - {PrefixSharing.LEADER})
def test_nobody_waits_where_the_server_needs_no_leader(sharing: PrefixSharing) -> None:
    """All siblings go out together."""
    jobs = [job(question=f"{LONG} {name}") for name in "ab"]
    assert started(jobs, sharing) == [("a", 0.0), ("b", 0.0)]


def test_of_a_fork_of_forks_each_prefix_has_its_leader() -> None:
    """The inner forks wait for the outer prefix, then each for its own; all wait for two prompts, not for four."""
    jobs = [job(question=f"{LONG} {fork * 200} {fork}{leaf}") for leaf in "12" for fork in "xy"]
    assert started(jobs) == [("x1", 0.0), ("x2", 2.0), ("y1", 2.0), ("y2", 4.0)]


def test_what_is_short_is_not_worth_a_wait() -> None:
    """A common prefix of less than a block holds nobody back."""
    assert started([job(question=f"Short. {name}") for name in "ab"]) == [("a", 0.0), ("b", 0.0)]


def test_runs_do_not_wait_for_each_other() -> None:
    """Another run's call may be queued for long."""
    assert started([job(run, question=f"{LONG} {run}") for run in "ab"]) == [("a", 0.0), ("b", 0.0)]


def test_what_is_in_the_cache_needs_no_leader() -> None:
    """Later siblings go at once."""

    async def scenario() -> None:
        source = backend()
        lane = Lane(source)
        await perform_all(lane, [job(question=f"{LONG} first")])
        await perform_all(lane, [job(question=f"{LONG} {name}") for name in "ab"])
        assert [log.started_at for log in source.calls] == [0.0, 12.0, 12.0]

    run_virtual(scenario())


def test_a_leader_that_fails_does_not_hold_its_siblings() -> None:
    """The siblings go on when the leader cannot."""

    async def scenario() -> None:
        lane = Lane(backend(Reply.failing(RequestRejected("no")), Reply.of("ok"), Reply.of("ok")))
        errors = await perform_all(lane, [job(question=f"{LONG} {name}") for name in "abc"])
        assert [type(error) for error in errors] == [RequestRejected, type(None), type(None)]

    run_virtual(scenario())


def test_a_leader_that_is_cancelled_leaves_the_lead_to_the_next() -> None:
    """Then the next one computes the prefix, and the third waits for it."""

    async def scenario() -> None:
        source = backend()
        lane = Lane(source)
        tasks = [asyncio.create_task(lane.perform(job(question=f"{LONG} {name}"))) for name in "abc"]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert [log.started_at for log in source.calls] == [0.0, 1.0, 3.0]
        assert lane.in_flight == 0

    run_virtual(scenario())


def test_blocks_are_the_common_prefix() -> None:
    """Two branches have as many blocks in common as whole blocks of text; a segment counts like a message."""
    one, other = Branch.of(LONG + "x" * 300), Branch.of(LONG + "y" * 300)
    left, right = blocks_of(one, of="run"), blocks_of(other, of="run")
    common = [a for a, b in zip(left, right, strict=True) if a == b]
    assert len(common) == (len("user\0") + len(LONG)) // BLOCK
    assert left[: len(common)] == common
    assert blocks_of(one.say(INNER), of="run")[: len(left)] == left
    assert not set(blocks_of(one, of="another")) & set(left)


async def test_what_was_forgotten_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few blocks, two calls may compute the same ones; neither leaves anything behind."""
    monkeypatch.setattr(module, "REMEMBERED", 1)
    leaders = Leaders()
    async with leaders.turn([1, 2]) as first:
        first.computed()  # 1 is forgotten
        async with leaders.turn([1, 2, 3]), leaders.turn([9, 2, 3]) as other:
            other.computed()
        async with leaders.turn([1, 2, 3]) as again:
            assert again.blocks
    assert not leaders._computing
