"""SlotTable: which slot a call gets, and what is restored and saved. No engine is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from anabranch.serving.backends.local.desk import SlotDesk
from anabranch.serving.backends.local.labels import score
from anabranch.serving.backends.local.slots import WORTH, Lease, SlotTable, Tokens, Wish, common

SHARED = tuple(range(1000, 1300))


def branch(number: int, *, shared: Tokens = SHARED, group: str = "", siblings: int = 1) -> Wish:
    return Wish(tokens=(*shared, number, number, number), group=group, siblings=siblings)


def finish(table: SlotTable, lease: Lease, *written: int) -> None:
    table.done(lease, lease.wish.tokens + written)


def run_all(table: SlotTable) -> list[Lease]:
    """Serve all that waits, one after another; the leases in the order in which they were given."""
    leases = []
    while granted := table.plan():
        for _, lease in granted:
            if lease.save:
                table.saved(lease)
            leases.append(lease)
        for _, lease in granted:
            finish(table, lease)
    return leases


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [
        ((), (), 0),
        ((1,), (2,), 0),
        ((1, 2), (1,), 1),
        ((1, 2, 3), (1, 2, 4), 2),
        (tuple(range(99)), tuple(range(98)), 98),
    ],
)
def test_common_prefix(left: Tokens, right: Tokens, length: int) -> None:
    """`common` counts leading tokens that are equal."""
    assert common(left, right) == common(right, left) == length


def test_common_prefix_at_every_length() -> None:
    """`common` is right wherever the difference lies."""
    base = tuple(range(17))
    assert [common(base, (*base[:cut], -1, *base[cut + 1 :])) for cut in range(17)] == list(range(17))


def test_siblings_wait_for_their_leader_and_restore_what_it_saved() -> None:
    """Of cold siblings that arrive together one computes the prefix, and all others restore it."""
    table = SlotTable(8, room=10_000)
    for key in range(8):
        table.want(key, branch(key))
    [(_, leader)] = table.plan()
    assert leader.save
    assert leader.restore is None
    table.saved(leader)
    others = [lease for _, lease in table.plan()]
    assert len(others) == 7
    assert {lease.restore for lease in others} == {leader.save}
    assert not any(lease.save for lease in others)
    assert len({lease.slot for lease in [leader, *others]}) == 8


def test_hint_of_siblings_to_come_is_enough() -> None:
    """A call that arrives alone saves its prompt where siblings are announced, once for the fork."""
    table = SlotTable(2, room=10_000)
    table.want(0, branch(0, group="fork", siblings=3))
    [(_, first)] = table.plan()
    assert first.save
    table.saved(first)
    table.want(1, branch(1, group="fork", siblings=3))
    [(_, second)] = table.plan()
    assert second.restore == first.save
    assert second.save is None


def test_second_call_of_a_group_makes_it_a_fork() -> None:
    """Without a hint the second call of a group shows that it is a fork, and saves."""
    table = SlotTable(3, room=10_000)
    table.want(0, branch(0, group="fork"))
    [(_, first)] = table.plan()
    assert first.save is None
    table.want(1, branch(1, group="fork"))
    [(_, second)] = table.plan()
    assert second.save


def test_lone_call_saves_nothing() -> None:
    """A call without siblings runs in its slot as it is."""
    table = SlotTable(2, room=10_000)
    table.want(0, branch(0, group="alone"))
    [(_, lease)] = table.plan()
    assert (lease.restore, lease.save) == (None, None)


def test_branches_go_back_to_their_own_slots() -> None:
    """Branches that go on together each find the slot that holds them, and nothing is saved again."""
    table = SlotTable(4, room=10_000)
    for key in range(4):
        table.want(key, branch(key))
    homes = {lease.wish.tokens: lease.slot for lease in run_all(table)}
    for key, (tokens, _) in enumerate(reversed(homes.items()), start=10):
        table.want(key, Wish(tokens=(*tokens, *range(40))))
    leases = [lease for _, lease in table.plan()]
    assert [lease.slot for lease in leases] == list(reversed(homes.values()))
    assert not any(lease.save or lease.restore for lease in leases)


def test_fork_of_a_warm_slot_computes_nothing_twice() -> None:
    """Where one slot holds the prefix already, a sibling takes it, saves it, and the others restore."""
    table = SlotTable(4, room=10_000)
    table.want(0, Wish(tokens=SHARED))
    [(_, parent)] = table.plan()
    finish(table, parent)
    for key in range(1, 4):
        table.want(key, branch(key))
    [(_, leader)] = table.plan()
    assert leader.slot == parent.slot
    assert leader.save
    table.saved(leader)
    assert all(lease.restore == leader.save for _, lease in table.plan())


def test_more_calls_than_slots_are_served_in_order() -> None:
    """Calls beyond the slots wait, and those that came first go first."""
    table = SlotTable(2, room=10_000)
    for key in range(6):
        table.want(key, Wish(tokens=(key,) * 40))
    assert [lease.wish.tokens[0] for lease in run_all(table)] == list(range(6))


def test_leader_that_fails_has_a_successor() -> None:
    """When a leader ends before it has saved, another sibling leads."""
    table = SlotTable(4, room=10_000)
    for key in range(3):
        table.want(key, branch(key))
    [(_, leader)] = table.plan()
    table.done(leader, ())
    [(_, successor)] = table.plan()
    assert successor.save
    assert successor.wish is not leader.wish


def test_call_that_waits_no_more_gets_nothing() -> None:
    """A dropped call is not served."""
    table = SlotTable(1, room=10_000)
    table.want(0, branch(0))
    table.want(1, branch(1))
    table.drop(0)
    table.drop(99)
    assert [key for key, _ in table.plan()] == [1]


def test_short_prefixes_are_not_copied() -> None:
    """Siblings that share less than a copy is worth just run."""
    table = SlotTable(4, room=10_000)
    for key in range(4):
        table.want(key, branch(key, shared=SHARED[: WORTH - 1]))
    leases = [lease for _, lease in table.plan()]
    assert len(leases) == 4
    assert not any(lease.save for lease in leases)


def test_unrelated_call_takes_the_slot_that_is_missed_least() -> None:
    """A call that shares nothing takes an empty slot, then the one unused for longest."""
    table = SlotTable(2, room=10_000)
    used = []
    for key, start in enumerate((0, 1000, 2000, 3000)):
        table.want(key, Wish(tokens=tuple(range(start, start + 50))))
        [(_, lease)] = table.plan()
        finish(table, lease)
        used.append(lease.slot)
    assert sorted(used[:2]) == [0, 1]
    assert used[2:] == used[:2]


def test_files_are_bounded_and_never_taken_from_a_reader() -> None:
    """Old files are given up when there is no room, but not while a lease is to restore one."""
    table = SlotTable(3, room=400)
    table.want(0, branch(0, group="a", siblings=2))
    table.want(1, branch(1, group="a", siblings=2))
    [(_, leader)] = table.plan()
    table.saved(leader)
    [(_, reader)] = table.plan()
    table.want(2, branch(2, shared=tuple(range(5000, 5300)), group="b", siblings=2))
    [(_, other)] = table.plan()
    table.saved(other)
    assert table.discarded() == [other.save]
    finish(table, reader)
    finish(table, reader)
    assert table.discarded() == []
    finish(table, other)
    table.want(3, branch(3, shared=tuple(range(7000, 7300)), group="c", siblings=2))
    [(_, third)] = table.plan()
    table.saved(third)
    assert table.discarded() == [leader.save]


async def test_desk_gathers_calls_that_are_on_their_way(tmp_path: Path) -> None:
    """A call whose sibling is still being tokenized is not served before it."""
    desk = SlotDesk(SlotTable(4, room=10_000), tmp_path)
    with desk.arriving():
        with desk.arriving():
            first = desk.queue(branch(1))
        assert not first.lease.done()
        second = desk.queue(branch(2))
    leader = await desk.turn(first)
    assert leader.save
    assert not second.lease.done()
    desk.saved(leader)
    assert (await desk.turn(second)).restore == leader.save


async def test_desk_does_not_wait_for_ever_for_others(tmp_path: Path) -> None:
    """A call is served after a moment, even if another one stays on its way."""
    desk = SlotDesk(SlotTable(1, room=10_000), tmp_path)
    with desk.arriving():
        assert (await desk.turn(desk.queue(branch(1)))).slot == 0


async def test_cancelled_waiter_leaves_the_queue(tmp_path: Path) -> None:
    """A call that is cancelled while it waits, or just as it is served, holds no slot."""
    desk = SlotDesk(SlotTable(1, room=10_000), tmp_path)
    holder = await desk.turn(desk.queue(branch(1)))
    waiting = asyncio.create_task(desk.turn(desk.queue(branch(2))))
    served_late = asyncio.create_task(desk.turn(desk.queue(branch(3))))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    desk.release(holder, ())
    served_late.cancel()
    await asyncio.wait([served_late])
    assert served_late.cancelled()
    assert (await desk.turn(desk.queue(branch(4)))).slot == 0


async def test_label_of_several_tokens_is_the_sum_of_its_steps() -> None:
    """Labels that begin alike share a question, and a rare token is looked up in the whole vocabulary."""
    asked: list[tuple[Tokens, int]] = []

    async def ask(before: Tokens, alternatives: int) -> dict[int, float]:
        asked.append((before, alternatives))
        table = {(): {1: -1.0, 2: -2.0}, (1,): {3: -0.5}, (1, 3): {4: -0.25} if alternatives == 9000 else {}}
        return table[before]

    scores = await score({"a": (1, 3), "b": (2,), "c": (1, 3, 4), "none": ()}, ask, everything=9000)
    assert scores == {"a": -1.5, "b": -2.0, "c": -1.75, "none": float("-inf")}
    assert asked == [((), 512), ((1,), 512), ((1, 3), 512), ((1, 3), 9000)]
