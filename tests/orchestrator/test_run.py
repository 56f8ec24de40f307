"""What a strategy can do with a run, and what the engine counts without its help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import pairwise

import pytest

from anabranch import Answer, Branch, Budget, Limits, Node, Orchestrator, Policy, Run, Sampling, TaskGraph
from anabranch.orchestrator.accounting import computation_graph, critical_path
from anabranch.orchestrator.backend import Call, Capabilities
from anabranch.orchestrator.errors import (
    AnabranchError,
    BackendUnavailable,
    GraphError,
    RequestRejected,
    TooFewSucceeded,
    UnknownName,
    UnsupportedCapability,
)
from anabranch.orchestrator.events import Event
from anabranch.orchestrator.sampling import Constraint
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Do:
    """A strategy made of a function."""

    name = "do"

    def __init__(self, work: Callable[[Run], Awaitable[None]]) -> None:
        self._work = work

    async def __call__(self, run: Run) -> None:
        await self._work(run)


def ask(
    backend: ScriptedBackend,
    work: Callable[[Run], Awaitable[None]],
    *,
    budget: Budget | None = None,
    sampling: Sampling | None = None,
    listen: Callable[[Event], None] | None = None,
) -> Answer:
    """Run a strategy on the virtual clock; whatever is left over afterwards is a failure."""

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            answer = await orch.ask(
                "Q",
                strategy=Do(work),
                budget=budget,
                sampling=sampling,
                listeners=[listen] if listen else [],
            )
            assert all(lane.in_flight == lane.waiting == 0 for lane in orch.lanes)
        assert len(asyncio.all_tasks()) == 1
        assert backend.running == 0
        return answer

    return run_virtual(scenario())


def words(**delays: float) -> ScriptedBackend:
    """Answers each question with its own last word, after its delay; `_` is the outline."""
    return ScriptedBackend(
        lambda call: Reply.of(f"{call.branch.question}!", delay_s=delays.get(call.branch.question, 0.0))
    )


# Generating


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
    rids = [log.call.rid for log in backend.calls]
    assert len(set(rids)) == 20
    assert {len(rid) for rid in rids} == {32}


# Stopping


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


# Fan-out


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


# Graphs


def plan(*edges: tuple[str, tuple[str, ...]]) -> TaskGraph[str]:
    return TaskGraph.of([Node(id=id, needs=needs, payload=id) for id, needs in edges])


DIAMOND = (("a", ()), ("b", ()), ("c", ("a",)), ("d", ("b", "c")))


def test_a_node_starts_the_moment_its_own_parents_are_done() -> None:
    """No level waits for another: c starts when a is done, though b still runs."""
    starts: dict[str, float] = {}

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            starts[node.id] = asyncio.get_running_loop().time()
            parents = " ".join(inputs[need] for need in node.needs)
            live = run.generate(Branch.of(node.payload))
            return f"({parents}{(await live).text})"

        outcomes = await run.execute(plan(*DIAMOND), do)
        run.emit(str(outcomes["d"].value))

    answer = ask(words(a=1, b=5, c=2, d=1), work)
    assert starts == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 5.0}
    assert answer.text == "((b!) ((a!)c!)d!)"


def test_a_failed_node_fails_its_dependants_and_nothing_hangs() -> None:
    """Dependants carry the reason; independent nodes finish."""

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            if node.id == "a":
                raise RequestRejected("boom")
            return node.id

        outcomes = await run.execute(plan(*DIAMOND), do, policy=Policy.tolerate())
        assert {id: outcome.ok for id, outcome in outcomes.items()} == {
            "a": False,
            "b": True,
            "c": False,
            "d": False,
        }
        assert "boom" in str(outcomes["d"].error)

    answer = ask(words(), work)
    assert answer.warnings == ("node 'a' failed: boom",)


def test_a_failed_node_stops_the_graph_where_nothing_is_tolerated() -> None:
    """Without a policy the first failure is raised, and the rest is cancelled."""
    backend = words(b=100)

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            if node.id == "a":
                raise RequestRejected("boom")
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*DIAMOND), do)

    with pytest.raises(RequestRejected, match="boom"):
        ask(backend, work)


def test_a_plan_is_executed_while_it_is_still_being_written() -> None:
    """The first node is at work before the last one is known."""
    starts: dict[str, float] = {}

    async def arriving() -> AsyncIterator[Node[str]]:
        for id, needs in DIAMOND:
            yield Node(id=id, needs=needs, payload=id)
            await asyncio.sleep(10)

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            starts[node.id] = asyncio.get_running_loop().time()
            return node.id

        await run.execute(TaskGraph[str](), do, arriving=arriving())

    ask(words(), work)
    assert starts == {"a": 0.0, "b": 10.0, "c": 20.0, "d": 30.0}


def test_a_bad_node_in_a_streamed_plan_stops_it_with_the_node_named() -> None:
    """A reference to nothing is refused when it arrives."""

    async def arriving() -> AsyncIterator[Node[str]]:
        yield Node(id="a", payload="a")
        yield Node(id="b", needs=("ghost",), payload="b")

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            await asyncio.sleep(100)
            return node.id

        await run.execute(TaskGraph[str](), do, arriving=arriving())

    with pytest.raises(GraphError, match=r"node 'b'.*ghost"):
        ask(words(), work)


def test_nodes_with_more_hanging_on_them_go_first() -> None:
    """The graph's remaining chain is the priority of what its nodes generate."""
    backend = words()
    edges = [("leaf", ()), ("root", ()), *((f"n{i}", (f"n{i - 1}" if i else "root",)) for i in range(3))]

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*edges), do)

    ask(backend, work)
    assert backend.calls[0].call.branch.question == "root"


# Scores, delegation, telling


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


def test_a_delegated_run_shares_budget_and_account_but_not_the_answer() -> None:
    """Its generations count in the outer run, its text is handed back, and its figures are its own."""

    async def inner(run: Run) -> None:
        first = await run.generate(run.question)
        await run.relay(run.generate(run.question.after(first).user("again")))

    async def outer(run: Run) -> None:
        lives = [run.delegate(Do(inner)) for _ in range(2)]
        answers = [await live for live in lives]
        assert [answer.usage.branches for answer in answers] == [2, 2]
        last = await run.generate(run.question.after(*answers).user("sum up"))
        assert last.depth == 3
        run.emit(last.text)

    answer = ask(words(), outer)
    assert answer.usage.branches == 5
    assert answer.text == "up!" or answer.text == "sum up!"


def test_a_delegated_run_can_be_read_and_stopped_like_a_generation() -> None:
    """A trace that has become useless is cancelled with all of its branches; what it wrote so far is there."""
    backend = ScriptedBackend(lambda call: Reply.of("a b c d e f", chunk_s=1))

    async def inner(run: Run) -> None:
        await run.relay(run.generate(run.question))

    async def outer(run: Run) -> None:
        live = run.delegate(Do(inner))
        async for _ in live:
            if len(live.text) >= 3:
                break
        live.cancel()
        answer = await live
        assert (answer.text, answer.finish_reason) == ("a b", "cancelled")
        run.emit("kept")

    answer = ask(backend, outer)
    assert backend.calls[0].state == "closed"
    assert answer.usage.wasted == 2


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


def test_events_tell_the_whole_story_in_order() -> None:
    """First the start, last the end with the answer's figures; each generation is queued, started, finished."""
    seen: list[Event] = []

    async def work(run: Run) -> None:
        run.warn("careful")
        run.fall_back("no list")
        await run.relay(run.generate(run.question))

    answer = ask(words(), work, listen=seen.append)
    assert [event.type for event in seen] == [
        "run_started",
        "warned",
        "fell_back",
        "generation_queued",
        "generation_started",
        "generation_delta",
        "generation_finished",
        "answer_delta",
        "run_finished",
    ]
    assert (answer.active, answer.fell_back, answer.warnings) == (False, "no list", ("careful",))
    assert all(a.t <= b.t for a, b in pairwise(seen))


def test_events_end_also_when_the_run_fails() -> None:
    """Readers of the stream always see an end, with the error."""
    seen: list[Event] = []

    async def work(run: Run) -> None:
        raise AnabranchError("cannot")

    with pytest.raises(AnabranchError, match="cannot"):
        ask(words(), work, listen=seen.append)
    assert seen[-1].type == "run_finished"
    assert seen[-1].error == "cannot"


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


def test_a_delegated_run_that_is_cancelled_before_its_first_step_settles() -> None:
    """Nobody waits for ever for what never ran."""

    async def outer(run: Run) -> None:
        live = run.delegate(Do(outer))
        live.cancel()
        assert (await live).finish_reason == "cancelled"
        run.emit("kept")

    assert ask(words(), outer).text == "kept"


def test_a_budget_that_others_used_up_does_not_make_a_whole_trace_incomplete() -> None:
    """Three of eight traces are allowed: their votes are whole, and make the answer."""

    async def plain(run: Run) -> None:
        run.finish(await run.relay(run.generate(run.question)))

    async def outer(run: Run) -> None:
        lives = [run.delegate(Do(plain)) for _ in range(8)]
        whole = [live async for live in run.as_completed(lives) if live.error is None and (await live).complete]
        run.emit(str(len(whole)))

    answer = ask(words(), outer, budget=Budget(branches=3))
    assert (answer.text, answer.finish_reason) == ("3", "budget")


def test_warnings_of_delegated_runs_reach_the_answer_once() -> None:
    """The caller sees what went wrong inside, and not once for each trace."""

    async def inner(run: Run) -> None:
        run.warn("odd")
        await run.relay(run.generate(run.question))

    async def outer(run: Run) -> None:
        for live in [run.delegate(Do(inner)) for _ in range(3)]:
            run.emit((await live).text)

    assert ask(words(), outer).warnings == ("odd",)


def test_a_listener_that_fails_does_not_harm_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """It is dropped and logged; the answer is whole."""
    heard: list[str] = []

    def bad(event: Event) -> None:
        heard.append(event.type)
        raise OSError("disk full")

    async def work(run: Run) -> None:
        await run.relay(run.generate(run.question))

    assert ask(words(), work, listen=bad).text == "Q!"
    assert heard == ["run_started"]
    assert "disk full" in caplog.text


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


def test_nothing_to_do_is_no_failure() -> None:
    """An empty fan-out and an empty graph succeed under every policy."""

    async def work(run: Run) -> None:
        async def never(item: object, *_: object) -> str:
            raise AssertionError

        assert await run.map(never, [], Policy.tolerate()) == []
        assert await run.execute(plan(), never, policy=Policy.tolerate()) == {}

    ask(words(), work)


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    """A misspelt role does not silently become the target."""

    async def work(run: Run) -> None:
        run.generate(run.question, role="jugde")

    with pytest.raises(UnknownName, match=r"unknown role 'jugde'; known: .*judge"):
        ask(words(), work)


def test_a_strategy_says_what_it_needs_and_a_mismatch_is_found_first() -> None:
    """The error names the capability and the role; nothing has been generated."""

    class Needy(Do):
        requires = {"target": ("prefill", "labels")}  # noqa: RUF012

    async def work(run: Run) -> None:
        raise AssertionError

    backend = ScriptedBackend([], capabilities=Capabilities(labels=True))

    async def scenario() -> None:
        async with Orchestrator(backend) as orch:
            with pytest.raises(UnsupportedCapability, match="'do' needs prefill for its target"):
                await orch.ask("Q", strategy=Needy(work))

    run_virtual(scenario())


def test_a_streamed_plan_keeps_what_is_done_when_a_later_node_is_bad() -> None:
    """Where losses are tolerated, the rest of a bad plan is left out, with a warning."""

    async def arriving() -> AsyncIterator[Node[str]]:
        yield Node(id="a", payload="a")
        yield Node(id="b", needs=("ghost",), payload="b")
        yield Node(id="c", payload="c")

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return node.id

        outcomes = await run.execute(TaskGraph[str](), do, policy=Policy.tolerate(), arriving=arriving())
        assert {id: outcome.state for id, outcome in outcomes.items()} == {"a": "done"}

    assert "ghost" in ask(words(), work).warnings[0]


def test_a_node_that_becomes_ready_late_overtakes_what_is_less_urgent() -> None:
    """With one slot, the head of a long chain goes before leaves that were queued long ago."""
    backend = ScriptedBackend(lambda call: Reply.of(call.branch.question, delay_s=1.0))
    edges = [("first", ()), *((f"leaf{i}", ()) for i in range(3)), ("head", ("first",)), ("tail", ("head",))]

    async def work(run: Run) -> None:
        async def do(node: Node[str], inputs: Mapping[str, str]) -> str:
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(plan(*edges), do)

    async def scenario() -> None:
        async with Orchestrator(backend, limits=Limits(start=1, most=1)) as orch:
            await orch.ask("Q", strategy=Do(work))

    run_virtual(scenario())
    order = [log.call.branch.question for log in backend.calls]
    # The slot that "first" frees is handed on at once; from then on the chain goes before the leaves that waited.
    assert order.index("head") < order.index("leaf1")
    assert order.index("head") < order.index("leaf2")


def test_the_first_token_of_an_answer_is_one_that_can_be_read() -> None:
    """Blank space does not count as the beginning of an answer."""

    async def work(run: Run) -> None:
        run.emit("\n")
        await asyncio.sleep(3)
        run.emit("text")

    assert ask(words(), work).timing.first_token_s == pytest.approx(3.0)
