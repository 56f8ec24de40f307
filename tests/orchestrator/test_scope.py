"""Scopes: what belongs to them, and that nothing outlives them."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.orchestrator.errors import BudgetExhausted, RequestRejected
from anabranch.orchestrator.scope import Scope
from anabranch.testing import run_virtual


class Owner:
    """Stands for a run."""


def test_a_spawned_task_belongs_to_the_scope_that_spawned_it() -> None:
    """Also when it is spawned from within an inner scope: leaving that one does not end it."""

    async def scenario() -> None:
        owner, seen = Owner(), []

        async def look() -> None:
            await asyncio.sleep(1)
            seen.append(Scope.current(owner))

        async with Scope(owner) as outer:
            async with Scope(owner):
                task = outer.spawn(look)
            await task
        assert seen == [outer]

    run_virtual(scenario())


def test_scopes_of_several_owners_nest() -> None:
    """The innermost scope of an owner is found behind those of others."""

    async def scenario() -> None:
        one, two = Owner(), Owner()
        async with Scope(one) as outer, Scope(two) as inner:
            assert Scope.current(one) is outer
            assert Scope.current(two) is inner
        assert Scope.current(one) is None

    run_virtual(scenario())


def test_what_is_started_while_a_scope_is_left_does_not_run() -> None:
    """A task that takes its time to end cannot leave anything behind."""

    async def scenario() -> None:
        ran = []

        async def late() -> None:
            ran.append("late")

        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1)
                scope.spawn(late)

        async with Scope(Owner()) as scope:
            scope.spawn(stubborn)
            await asyncio.sleep(0)
        assert ran == []
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)

    run_virtual(scenario())


def test_an_error_leaves_a_scope_as_itself_with_its_cause() -> None:
    """No group, and nothing taken away; further failures are noted."""

    async def fail(message: str) -> None:
        try:
            raise OSError("disk")
        except OSError as error:
            raise RequestRejected(message) from error

    async def block() -> None:
        async with Scope(Owner()) as scope:
            scope.spawn(fail, "first")
            scope.spawn(fail, "second")
            await asyncio.sleep(1)

    with pytest.raises(RequestRejected, match="first") as caught:
        run_virtual(block())
    assert isinstance(caught.value.__cause__, OSError)
    assert "second" in caught.value.__notes__[0]


def test_the_callers_cancellation_is_not_lost_in_an_error() -> None:
    """When a task fails in the moment in which the caller is cancelled, the caller is cancelled."""

    async def scenario() -> None:
        async def fail() -> None:
            raise BudgetExhausted("tokens", "over")

        async def block() -> None:
            async with Scope(Owner()) as scope:
                scope.spawn(fail)
                await asyncio.sleep(10)

        task = asyncio.create_task(block())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(scenario())


def test_clean_up_has_its_time_and_no_more() -> None:
    """A task that does not end when it is cancelled is interrupted again."""

    async def scenario() -> None:
        async def clinging() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()

        async with Scope(Owner()) as scope:
            scope.spawn(clinging)
            await asyncio.sleep(0)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)

    run_virtual(scenario())
