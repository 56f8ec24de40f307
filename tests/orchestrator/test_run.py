"""What a strategy can do with a run, and what the engine counts without its help."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from anabranch import Branch, Limits, Orchestrator, Run, Sampling
from anabranch.orchestrator.accounting import computation_graph, critical_path
from anabranch.orchestrator.backend import Capabilities
from anabranch.orchestrator.errors import (
    RequestRejected,
    UnknownName,
    UnsupportedCapability,
)
from anabranch.orchestrator.events import Event
from anabranch.orchestrator.sampling import Constraint
from anabranch.testing import Reply, ScriptedBackend, run_virtual
from engine import Do, ask, words


def test_a_generation_is_awaited_and_read_by_many() -> None:
    """Readers see every piece from the first on, also those that come when it has ended."""

    async def work(run: Run) -> None:
        live = run.generate(run.question)
        seen: list[list[str]] = []

        async def read() -> None:
            seen.append([delta.text async for delta in live])

        async with run.scope() as scope:
            tasks = [scope.spawn(read) for _ in range(3)]
            generation = await live
            await asyncio.wait(tasks)
        await read()
        assert seen == [["one", " two", " three", ""]] * 4
        run.emit(generation.text)

    assert ask(ScriptedBackend([Reply.of("one two three", chunk_s=1)]), work).text == "one two three"


def test_siblings_decode_side_by_side_and_the_span_is_the_longest_chain() -> None:
    """Work counts all tokens, span those of the longest chain; the clock agrees."""

    async def work(run: Run) -> None:
        outline = await run.generate(run.question, label="outline")
        fork = run.question.after(outline)
        for live in [run.generate(fork.user(f"point {i}")) for i in range(3)]:
            await run.relay(live)

    script = [Reply.of("a b c", delay_s=1), *(Reply.of("w " * n, delay_s=n) for n in (5, 2, 3))]
    answer = ask(ScriptedBackend(script), work)
    assert answer.timing.wall_s == pytest.approx(6.0)
    assert answer.usage.work == sum(record.completion for record in answer.generations)
    path = critical_path(computation_graph(answer.generations))
    assert [record.id for record in path] == [1, 2]
    assert answer.usage.span == sum(record.completion for record in path)
    assert answer.usage.parallelism == pytest.approx(answer.usage.work / answer.usage.span)
    assert answer.usage.branches == 4


def test_an_error_is_raised_to_whoever_awaits_or_iterates() -> None:
    """A failed generation is a recorded value; the error keeps its status."""

    async def work(run: Run) -> None:
        live = run.generate(run.question)
        with pytest.raises(RequestRejected) as caught:
            await live
        assert caught.value.status_code == 422
        with pytest.raises(RequestRejected):
            async for _ in live:
                pass
        run.emit("went on")

    answer = ask(ScriptedBackend([Reply.failing(RequestRejected("no", status_code=422), after="a b")]), work)
    assert answer.text == "went on"
    assert answer.usage.wasted == 2


def test_an_uncaught_failure_is_raised_by_ask_as_itself() -> None:
    """No group, no wrapping: the caller gets the server's error."""

    async def work(run: Run) -> None:
        await run.relay(run.generate(run.question))

    with pytest.raises(RequestRejected, match="bad prompt"):
        ask(ScriptedBackend([Reply.failing(RequestRejected("bad prompt"))]), work)


@pytest.mark.parametrize(
    ("capabilities", "arguments", "branch"),
    [
        (Capabilities(), {"constraint": Constraint(kind="regex", source="a+")}, Branch.of("Q")),
        (Capabilities(), {"top_logprobs": 3}, Branch.of("Q")),
        (Capabilities(), {}, Branch.of("Q").say("begun")),
        (Capabilities(max_stops=1), {"stop": ("a", "b")}, Branch.of("Q")),
    ],
)
def test_what_the_backend_cannot_do_is_an_error_before_the_first_token(
    capabilities: Capabilities, arguments: Mapping[str, object], branch: Branch
) -> None:
    """The mismatch is found by the engine; the server is never asked."""
    backend = ScriptedBackend([], capabilities=capabilities)

    async def work(run: Run) -> None:
        await run.generate(branch, **arguments)  # type: ignore[arg-type]

    with pytest.raises(UnsupportedCapability):
        ask(backend, work)
    assert backend.calls == []


def test_seeds_differ_by_branch_and_repeat_by_run() -> None:
    """The first generation has the caller's seed, the others one derived from it."""

    def seeds() -> list[int | None]:
        backend = words()

        async def work(run: Run) -> None:
            for _ in range(3):
                await run.generate(run.question)

        ask(backend, work, sampling=Sampling(seed=7))
        return [log.call.sampling.seed for log in backend.calls]

    assert seeds() == seeds()
    assert seeds()[0] == 7
    assert len(set(seeds())) == 3


def test_rids_are_of_one_width() -> None:
    """No rid is the beginning of another: SGLang aborts by prefix."""
    backend = words()

    async def work(run: Run) -> None:
        for _ in range(20):
            await run.generate(run.question)

    ask(backend, work)
    ask(backend, work)
    rids = [log.call.rid for log in backend.calls]
    assert len(set(rids)) == 40
    assert {len(rid) for rid in rids} == {32}


def test_cancelling_stops_the_call_and_counts_the_waste() -> None:
    """The call is closed at the backend; what there was so far is given, and counts as wasted."""
    backend = ScriptedBackend([Reply.of("a b c d e f", chunk_s=1)])

    async def work(run: Run) -> None:
        live = run.generate(run.question)
        await asyncio.sleep(2.5)
        live.cancel()
        generation = await live
        assert (generation.text, generation.finish_reason) == ("a b c", "cancelled")
        run.emit("done")

    answer = ask(backend, work)
    assert backend.calls[0].state == "closed"
    assert (answer.usage.work, answer.usage.wasted) == (3, 3)


def test_leaving_a_scope_stops_what_still_runs() -> None:
    """The winner is kept, the losers are cancelled at the backend when the block is left."""
    backend = words(a=1, b=5, c=9)

    async def work(run: Run) -> None:
        async with run.scope():
            lives = [run.generate(Branch.of(q)) for q in "abc"]
            async for live in run.as_completed(lives):
                run.emit((await live).text)
                break
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)

    assert ask(backend, work).text == "a!"
    assert [log.state for log in backend.calls] == ["done", "closed", "closed"]


def test_scopes_nest_and_an_error_inside_stops_the_block() -> None:
    """An error in a spawned task cancels its siblings and is raised by the scope, as itself."""
    backend = words(slow=50)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise RequestRejected("inner")

    async def work(run: Run) -> None:
        outer = run.generate(Branch.of("quick"))

        async def block() -> None:
            async with run.scope() as scope:
                scope.spawn(fail)
                await run.generate(Branch.of("slow"))

        with pytest.raises(RequestRejected, match="inner"):
            await block()
        run.emit((await outer).text)

    assert ask(backend, work).text == "quick!"
    assert {log.call.branch.question: log.state for log in backend.calls} == {"quick": "done", "slow": "closed"}


def test_a_generation_cancelled_before_its_first_step_settles() -> None:
    """Nobody waits for ever for what never ran."""

    async def work(run: Run) -> None:
        live = run.generate(run.question)
        live.cancel()
        generation = await live
        assert (generation.text, generation.finish_reason) == ("", "cancelled")

    answer = ask(words(), work)
    assert answer.usage.branches == 0


def test_what_nobody_read_is_wasted() -> None:
    """A finished generation that nobody looked at was for nothing; one that was rejected, too."""

    async def work(run: Run) -> None:
        run.generate(Branch.of("unread"))
        rejected = await run.generate(Branch.of("rejected"))
        run.discard(rejected, "wrong")
        await run.relay(run.generate(Branch.of("used")))

    answer = ask(words(), work)
    assert [(record.completion, record.wasted) for record in answer.generations] == [(1, 1), (1, 1), (1, 0)]


def test_roles_go_to_their_own_servers_and_missing_ones_to_the_target() -> None:
    """A role that nobody plays is played by the target."""
    target, draft = words(), words()

    async def work(run: Run) -> None:
        for role in ("draft", "judge", "target"):
            await run.generate(run.question, role=role)
        assert run.has_role("draft")
        assert not run.has_role("judge")

    async def scenario() -> None:
        async with Orchestrator(target, roles={"draft": draft}) as orch:
            await orch.ask("Q", strategy=Do(work), model="big")
        assert (len(target.calls), len(draft.calls)) == (2, 1)
        assert {log.call.model for log in target.calls} == {"big"}
        assert (target.closed, draft.closed) == (True, True)

    run_virtual(scenario())


def test_what_is_built_on_a_rejected_generation_alone_is_wasted_with_it() -> None:
    """A verdict that also read something else was of use; what the target wrote behind a rejected draft was not."""

    async def work(run: Run) -> None:
        draft, own = await run.generate(run.question), await run.generate(run.question)
        await run.generate(draft.branch, label="behind the draft")
        await run.generate(run.question.after(draft, own).user("same?"), label="verdict")
        run.discard(draft, "rejected")
        run.discard(draft, "rejected again")
        run.emit(own.text)

    seen: list[Event] = []
    answer = ask(words(), work, listen=seen.append)
    assert [record.wasted > 0 for record in answer.generations] == [True, False, True, False]
    assert sum(event.type == "generation_discarded" for event in seen) == 2


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    """A misspelt role does not silently become the target."""

    async def work(run: Run) -> None:
        run.generate(run.question, role="jugde")

    with pytest.raises(UnknownName, match=r"unknown role 'jugde'; known: .*judge"):
        ask(words(), work)


def test_a_strategy_sees_how_busy_a_role_is() -> None:
    """Calls at the server, calls that wait, and the slots that there are; each role has its own."""
    slow, draft = ScriptedBackend(lambda call: Reply.of("x", delay_s=9.0)), words()

    async def work(run: Run) -> None:
        assert run.load().share == 0.0
        lives = [run.generate(Branch.of(f"q{i}"), label=str(i)) for i in range(5)]
        await asyncio.sleep(0.5)
        load = run.load()
        assert (load.in_flight, load.waiting, load.slots, load.share) == (2, 3, 2, 2.5)
        assert run.load("judge") == load  # played by the target
        assert run.load("draft").in_flight == 0
        for live in lives:
            live.cancel()
        run.emit("done")

    async def scenario() -> None:
        async with Orchestrator(slow, roles={"draft": draft}, limits=Limits(start=2, most=2)) as orch:
            await orch.ask("Q", strategy=Do(work))

    run_virtual(scenario())
