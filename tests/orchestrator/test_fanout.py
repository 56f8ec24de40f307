"""Fan-outs and their failure policies: order, losses, quorums, bugs."""

from __future__ import annotations

import pytest

from anabranch import Branch, Policy, Run
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.errors import (
    BackendUnavailable,
    TooFewSucceeded,
)
from anabranch.testing import Reply, ScriptedBackend
from engine import ask, words


def test_map_keeps_the_order_and_runs_side_by_side() -> None:
    """Outcomes come in the items' order, whatever order they end in."""

    async def work(run: Run) -> None:
        async def one(word: str) -> str:
            return (await run.generate(Branch.of(word))).text

        outcomes = await run.map(one, ["a", "b", "c"])
        run.emit(" ".join(str(outcome.value) for outcome in outcomes))

    answer = ask(words(a=3, b=1, c=2), work)
    assert answer.text == "a! b! c!"
    assert answer.timing.wall_s == pytest.approx(3.0)


def some_fail(call: Call) -> Reply:
    word = call.branch.question
    return (
        Reply.failing(BackendUnavailable("died", retryable=False))
        if word in "bd"
        else Reply.of(word, delay_s=1)
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy.tolerate(), ["a", None, "c", None]),
        (Policy.tolerate(at_least=2), ["a", None, "c", None]),
        (Policy.quorum(1), ["a", None, None, None]),
    ],
)
def test_policies_say_what_a_loss_means(policy: Policy, expected: list[str | None]) -> None:
    """Tolerated losses become one warning; a quorum stops the rest."""
    delays = {"a": 1.0, "c": 2.0}

    def reply(call: Call) -> Reply:
        word = call.branch.question
        if word in "bd":
            return Reply.failing(BackendUnavailable("died", retryable=False))
        return Reply.of(word, delay_s=delays[word])

    got: list[str | None] = []

    async def work(run: Run) -> None:
        async def one(word: str) -> str:
            return (await run.generate(Branch.of(word))).text

        got.extend(outcome.value for outcome in await run.map(one, "abcd", policy))

    answer = ask(ScriptedBackend(reply), work)
    assert got == expected
    assert answer.warnings == ("2 of 4 branches failed: died",)


def test_too_few_successes_raise_with_the_failures() -> None:
    """As soon as too many have failed, the caller learns how many were needed, and the first cause."""

    async def work(run: Run) -> None:
        async def one(word: str) -> str:
            return (await run.generate(Branch.of(word))).text

        await run.map(one, "abcd", Policy.tolerate(at_least=3))

    backend = ScriptedBackend(some_fail)
    with pytest.raises(TooFewSucceeded, match="3 needed; first failure: died"):
        ask(backend, work)
    assert {log.call.branch.question for log in backend.calls if log.state == "closed"} == {"a", "c"}


def test_fail_fast_stops_the_others() -> None:
    """The first failure cancels its siblings at the backend."""
    backend = ScriptedBackend(some_fail)

    async def work(run: Run) -> None:
        async def one(word: str) -> str:
            return (await run.generate(Branch.of(word))).text

        await run.map(one, "abc")

    with pytest.raises(BackendUnavailable):
        ask(backend, work)
    assert {log.call.branch.question: log.state for log in backend.calls} == {
        "a": "closed",
        "b": "failed",
        "c": "closed",
    }


def test_a_bug_in_a_strategy_is_not_taken_for_a_lost_branch() -> None:
    """Only Anabranch's own errors are tolerated."""

    async def work(run: Run) -> None:
        async def broken(_: str) -> str:
            raise KeyError("bug")

        await run.map(broken, "ab", Policy.tolerate())

    with pytest.raises(KeyError, match="bug"):
        ask(words(), work)


def test_tools_may_fail_with_errors_of_their_own() -> None:
    """The policy names what counts as a loss besides Anabranch's errors."""

    async def work(run: Run) -> None:
        async def tool(name: str) -> str | None:
            if name == "b":
                raise OSError("no such file")
            return None

        outcomes = await run.map(tool, "ab", Policy(at_least=1, tolerates=(OSError,)))
        assert [(outcome.state, outcome.ok) for outcome in outcomes] == [("done", True), ("failed", False)]

    assert ask(words(), work).warnings == ("1 of 2 branches failed: no such file",)
