"""Skeleton: what is asked, in which order it is written, and what becomes of it when something goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.budget import Budget
from anabranch.orchestrator.errors import (
    AnabranchError,
    BackendUnavailable,
    InvalidParameter,
    RequestRejected,
)
from anabranch.orchestrator.events import AnswerDelta, Event, GenerationFinished, GenerationStarted
from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.serving.backends.scripted import DEFAULT_CAPABILITIES, Reply, ScriptedBackend
from anabranch.strategies.skeleton import Skeleton
from anabranch.testing import run_virtual

QUESTION = "What are good habits?"
TITLES = ["Sleep well", "Eat greens", "Walk daily"]
PLAIN = replace(DEFAULT_CAPABILITIES, prefill=False, constraints=frozenset(), labels=False)
PREFILL = replace(DEFAULT_CAPABILITIES, constraints=frozenset())


def outline(points: Sequence[object] = TITLES) -> str:
    return json.dumps({"points": points})


def point_of(call: Call) -> int | None:
    """The number of the point that a call asks for."""
    found = re.search(r"^Point (\d+): ", call.branch.question, re.MULTILINE)
    return int(found[1]) if found else None


def is_outline(call: Call) -> bool:
    return call.branch.question.startswith("Outline the answer")


def script(
    points: Mapping[int, Reply] | None = None, *, outline: Reply | None = None, plain: str = "plain answer"
) -> Callable[[Call], Reply]:
    """An outline, a reply for each point (`text N.` where none is given), and a plain answer for the rest."""
    outline = outline or Reply.of(json.dumps({"points": TITLES}))

    def reply(call: Call) -> Reply:
        if (number := point_of(call)) is not None:
            return (points or {}).get(number) or Reply.of(f" text {number}.")
        return outline if is_outline(call) else Reply.of(plain)

    return reply


def ask(
    backend: ScriptedBackend,
    question: Any = QUESTION,
    *,
    listen: Callable[[Event], None] | None = None,
    roles: Mapping[str, ScriptedBackend] | None = None,
    params: Mapping[str, Any] | None = None,
    **request: Any,
) -> Answer:
    """Ask on the virtual clock; what is left over afterwards is a failure."""

    async def scenario() -> Answer:
        async with Orchestrator(backend, roles=roles) as orch:
            try:
                return await orch.ask(
                    question,
                    strategy=Skeleton(**(params or {})),
                    listeners=[listen] if listen else [],
                    **request,
                )
            finally:
                assert len(asyncio.all_tasks()) == 1
                assert backend.running == 0

    return run_virtual(scenario())


WHOLE = "1. **Sleep well**: text 1.\n\n2. **Eat greens**: text 2.\n\n3. **Walk daily**: text 3."


# What it does


def test_points_are_expanded_and_joined_in_order() -> None:
    """One outline, all points at once, each under its title; the figures show the fork."""
    backend = ScriptedBackend(
        script({1: Reply.of(" text 1.", delay_s=9), 2: Reply.of("\n text 2.", delay_s=1)})
    )
    answer = ask(backend)
    assert answer.text == WHOLE
    assert (answer.active, answer.fell_back, answer.warnings, answer.finish_reason) == (True, None, (), "stop")
    assert backend.most_running == 3
    assert answer.usage.branches == 4
    assert answer.usage.wasted == 0
    assert [record.parents for record in answer.generations] == [(), (1,), (1,), (1,)]
    assert [record.label for record in answer.generations][:2] == ["outline", "1. Sleep well"]
    assert answer.timing.wall_s == 9


def test_the_answer_begins_while_other_points_are_decoded() -> None:
    """The first point is written as it comes; later ones wait for their turn, not for the end of all."""
    slow = {
        1: Reply.of(" text 1.", delay_s=1, chunk_s=1),
        2: Reply.of(" text 2."),
        3: Reply.of(" text 3.", delay_s=50),
    }
    seen: list[Event] = []
    assert ask(ScriptedBackend(script(slow)), listen=seen.append).text == WHOLE
    written = [(event.t, event.text) for event in seen if isinstance(event, AnswerDelta)]
    assert written[0] == (1, "1. **Sleep well**: ")
    assert written[1][0] == 1
    second = next(t for t, text in written if "Eat greens" in text)
    assert second == 2
    assert next(t for t, text in written if "Walk daily" in text) == 50
    ended = {event.id: event.t for event in seen if isinstance(event, GenerationFinished)}
    assert ended[3] == 0


def test_points_share_their_prompt_up_to_what_they_are_about() -> None:
    """The prompts differ from the number of the point on, and not before."""
    backend = ScriptedBackend(script())
    ask(backend)
    prompts = [log.call.branch.question for log in backend.calls if point_of(log.call)]
    heads = {prompt.split("Point ")[0] for prompt in prompts}
    assert len(prompts) == 3
    assert len(heads) == 1
    assert len({log.call.group for log in backend.calls[1:]}) == 1
    assert prompts[1].endswith("Point 2: Eat greens")


def test_the_conversation_is_kept() -> None:
    """System message and earlier turns go into every call."""
    messages = [
        {"role": "system", "content": "Speak plainly."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": QUESTION},
    ]
    backend = ScriptedBackend(script())
    assert ask(backend, messages).text == WHOLE
    for log in backend.calls:
        assert [m.to_wire() for m in log.call.branch.messages[:3]] == messages[:3]


def test_the_outline_is_constrained_where_the_backend_can() -> None:
    """With json_schema a schema goes along; with prefill the list is begun; without either it is asked for."""
    constrained, begun, asked = (
        ScriptedBackend(script()),
        ScriptedBackend(
            script(outline=Reply.of(" Sleep well\n2. Eat greens\n3. Walk daily")), capabilities=PREFILL
        ),
        ScriptedBackend(
            script(outline=Reply.of("1. Sleep well\n2. Eat greens\n3. Walk daily")), capabilities=PLAIN
        ),
    )
    for backend in (constrained, begun, asked):
        assert ask(backend).text == WHOLE
    constraint = constrained.calls[0].call.constraint
    assert constraint is not None
    assert json.loads(constraint.source)["properties"]["points"]["maxItems"] == 10
    assert (begun.calls[0].call.branch.text, begun.calls[1].call.branch.text) == ("1.", "1. **Sleep well**:")
    assert [log.call.branch.text for log in asked.calls] == [""] * 4
    assert asked.calls[1].call.stop == ()


def test_values_in_a_question_are_never_rendered() -> None:
    """Braces in a question and in a title reach the model as they are."""
    backend = ScriptedBackend(script(outline=Reply.of(outline(["{{ 1 + 1 }}", "{% x %}"]))))
    answer = ask(backend, "What do {{ braces }} mean?")
    assert "**{{ 1 + 1 }}**" in answer.text
    assert all("{{ braces }}" in log.call.branch.question for log in backend.calls)


def test_unicode_passes_through() -> None:
    """Titles and texts of any script come out as they went in."""
    backend = ScriptedBackend(
        script({1: Reply.of(" 早く寝る。😀")}, outline=Reply.of(outline(["睡眠", "Übung"])))
    )
    assert ask(backend).text == "1. **睡眠**: 早く寝る。😀\n\n2. **Übung**: text 2."


def test_sampling_defaults_to_the_papers_temperature() -> None:
    """0.7 where the caller sets none; the caller's own otherwise."""
    backend = ScriptedBackend(script())
    ask(backend)
    assert {log.call.sampling.temperature for log in backend.calls} == {0.7}


# Router


def test_unsuitable_questions_are_answered_plainly() -> None:
    """The rules send a question without a list to plain decoding, without spending an outline on it."""
    backend = ScriptedBackend(script())
    answer = ask(backend, "What is 17 * 23?")
    assert (answer.text, answer.active) == ("plain answer", False)
    assert answer.fell_back == "asks for a calculation or a proof"
    assert len(backend.calls) == 1
    assert ask(ScriptedBackend(script()), "What is 17 * 23?", params={"router": "off"}).active


@pytest.mark.parametrize(
    ("labels", "dependencies", "active"),
    [
        ({"A": -0.1, "B": -3.0, "C": -3.0}, False, True),
        ({"A": -3.0, "B": -0.1, "C": -3.0}, False, False),
        ({"A": -3.0, "B": -0.1, "C": -3.0}, True, True),
        ({"A": -3.0, "B": -3.0, "C": -0.1}, True, False),
    ],
)
def test_the_judge_routes(labels: dict[str, float], dependencies: bool, active: bool) -> None:
    """A suits; B (later points need earlier ones) suits with dependencies; C never does."""
    judge = ScriptedBackend([Reply(label_logprobs=labels)])
    params = {"router": "prompt", "dependencies": dependencies}
    answer = ask(ScriptedBackend(script()), "What is 17 * 23?", roles={"judge": judge}, params=params)
    assert answer.active is active
    assert judge.calls[0].call.labels == ("A", "B", "C")
    if not active:
        assert "the judge gives a skeleton" in (answer.fell_back or "")


# Falling back


@pytest.mark.parametrize(
    "text",
    ["", "I would rather not.", '{"points": []}', '{"points": ["Only one"]}', '{"points": ["A', "1. One"],
)
def test_fewer_than_two_points_fall_back(text: str) -> None:
    """No outline, no crash: the question is answered plainly, and the outline's tokens are wasted."""
    answer = ask(ScriptedBackend(script(outline=Reply.of(text, tokens=7 if text else 0))))
    assert answer.text == "plain answer"
    assert answer.fell_back == f"a skeleton needs two points, the outline has {int('ne' in text)}"
    assert answer.usage.wasted == (7 if text else 0)


def test_a_begun_answer_is_continued_plainly() -> None:
    """Where the caller has begun the answer, it cannot be laid out anew."""
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "First,"}]
    answer = ask(ScriptedBackend(script()), messages)
    assert (answer.text, answer.fell_back) == ("plain answer", "the answer has been begun already")


# Failures


def failing(text: str = "", *, delay_s: float = 0.0) -> Reply:
    return Reply.failing(RequestRejected("no", status_code=400), after=text, delay_s=delay_s)


def test_a_failed_point_is_left_out_with_a_warning() -> None:
    """The others are the answer, and the caller is told."""
    answer = ask(ScriptedBackend(script({2: failing(delay_s=3)})))
    assert answer.text == "1. **Sleep well**: text 1.\n\n3. **Walk daily**: text 3."
    assert (answer.active, answer.warnings) == (True, ("node 'point 2' failed: no",))


def test_a_point_that_fails_first_leaves_no_gap() -> None:
    """The answer then begins with the second point, not with an empty line."""
    assert ask(ScriptedBackend(script({1: failing()}))).text.startswith("2. **Eat greens**: text 2.")


def test_a_point_that_breaks_off_keeps_what_was_written() -> None:
    """What has reached the caller stays; the next point begins on its own line."""
    answer = ask(ScriptedBackend(script({2: failing(" half a")})))
    assert (
        answer.text == "1. **Sleep well**: text 1.\n\n2. **Eat greens**: half a\n\n3. **Walk daily**: text 3."
    )
    assert len(answer.warnings) == 1


def test_all_points_failing_fails_the_run() -> None:
    """When nothing is left, the error is raised, and names the first failure."""
    with pytest.raises(AnabranchError, match="no"):
        ask(ScriptedBackend(script(dict.fromkeys((1, 2, 3), failing()))))


def test_a_failing_outline_fails_the_run() -> None:
    """A server that cannot write an outline cannot answer plainly either."""
    with pytest.raises(RequestRejected):
        ask(ScriptedBackend(script(outline=failing())))


def test_an_empty_point_is_left_out_with_a_warning() -> None:
    """A title without a text is not written."""
    answer = ask(ScriptedBackend(script({3: Reply.of("  \n")})))
    assert answer.text == "1. **Sleep well**: text 1.\n\n2. **Eat greens**: text 2."
    assert answer.warnings == ("point 3 is empty",)


def test_cancelling_stops_every_branch() -> None:
    """Leaving the stream in the middle leaves no call running."""

    async def scenario() -> None:
        backend = ScriptedBackend(script(dict.fromkeys((1, 2, 3), Reply.hanging(" text"))))
        async with Orchestrator(backend) as orch:
            async with orch.stream(QUESTION, strategy=Skeleton()) as stream:
                async for event in stream:
                    if isinstance(event, AnswerDelta):
                        assert backend.running == 3
                        break
            assert backend.running == 0
        assert [log.state for log in backend.calls] == ["done", "closed", "closed", "closed"]
        assert len(asyncio.all_tasks()) == 1

    run_virtual(scenario())


# Limits


def test_the_callers_stop_string_ends_the_answer() -> None:
    """It goes along with every point; the one that writes it is the last, and later ones are wasted."""
    points = {2: replace(Reply.of(" text"), matched="END"), 3: Reply.of(" text 3.", tokens=5)}
    backend = ScriptedBackend(script(points))
    answer = ask(backend, stop=("END",))
    assert answer.text == "1. **Sleep well**: text 1.\n\n2. **Eat greens**: text"
    assert all("END" in log.call.stop for log in backend.calls if point_of(log.call))
    assert "END" not in backend.calls[0].call.stop
    assert answer.usage.wasted == 5


def test_points_that_run_when_the_answer_ends_are_stopped() -> None:
    """Nothing is left running behind a stop string."""
    points = {1: replace(Reply.of(" text"), matched="END"), 2: Reply.hanging(" a"), 3: failing(" x")}
    backend = ScriptedBackend(script(points))
    assert ask(backend, stop=("END",)).text == "1. **Sleep well**: text"


def test_the_callers_cap_is_divided_among_the_points() -> None:
    """Each gets its share; a point that is cut makes the answer end with `length`."""
    backend = ScriptedBackend(script({2: Reply.of(" word" * 90)}))
    answer = ask(backend, max_tokens=150)
    assert [log.call.max_tokens for log in backend.calls] == [512, 50, 50, 50]
    assert answer.finish_reason == "length"
    schema = json.loads(backend.calls[0].call.constraint.source)  # type: ignore[union-attr]
    assert schema["properties"]["points"]["maxItems"] == 3
    assert (
        ask(ScriptedBackend(script()), max_tokens=60).fell_back
        == "a cap of 60 tokens leaves no room for two points"
    )


def test_a_budget_that_ends_midway_gives_the_points_so_far() -> None:
    """Finished points, and what there is of unfinished ones, are the answer."""
    points = {n: Reply.of(f" text {n}" * (20 * n), chunk_s=1) for n in (1, 2, 3)}
    answer = ask(ScriptedBackend(script(points)), budget=Budget(tokens=70))
    assert answer.finish_reason == "budget"
    assert answer.active
    assert re.fullmatch(
        r"1\. \*\*Sleep well\*\*: .+\n\n2\. \*\*Eat greens\*\*: .+\n\n3\. \*\*Walk daily\*\*: .+", answer.text
    )
    assert answer.usage.completion <= 75


def test_a_deadline_gives_the_points_so_far() -> None:
    """A point that hangs does not hold back those that are there."""
    answer = ask(ScriptedBackend(script({2: Reply.hanging()})), budget=Budget(deadline_s=5))
    assert answer.finish_reason == "deadline"
    assert answer.text == "1. **Sleep well**: text 1.\n\n3. **Walk daily**: text 3."


def test_a_budget_that_ends_with_the_outline_gives_the_outline() -> None:
    """Where no point could be started, the outline is the best there is."""
    answer = ask(ScriptedBackend(script()), budget=Budget(branches=1))
    assert answer.text == "1. Sleep well\n2. Eat greens\n3. Walk daily"
    assert answer.finish_reason == "budget"


# Graph

GRAPH = outline(
    [
        {"title": "Causes", "needs": [], "difficulty": "easy"},
        {"title": "Costs", "needs": [], "difficulty": "hard"},
        {"title": "Effects", "needs": [1], "difficulty": "hard"},
        {"title": "Advice", "needs": [2, 3], "difficulty": "hard"},
    ]
)


def graph_script(points: Mapping[int, Reply] | None = None, text: str = GRAPH) -> Callable[[Call], Reply]:
    return script(points, outline=Reply.of(text))


def test_children_start_when_their_own_parents_are_done() -> None:
    """Each point waits for those that it needs and for no other, and the answer stays in order."""
    seen: list[Event] = []
    points = {n: Reply.of(f" text {n}.", delay_s=d) for n, d in ((1, 1), (2, 10), (3, 2), (4, 1))}
    answer = ask(ScriptedBackend(graph_script(points)), params={"dependencies": True}, listen=seen.append)
    started = {event.id: event.t for event in seen if isinstance(event, GenerationStarted)}
    labels = {record.label: started[record.id] for record in answer.generations}
    assert labels == {"outline": 0, "1. Causes": 0, "2. Costs": 0, "3. Effects": 1, "4. Advice": 10}
    assert [re.findall(r"text \d", answer.text)] == [["text 1", "text 2", "text 3", "text 4"]]
    parents = {record.label: record.parents for record in answer.generations}
    ids = {record.label: record.id for record in answer.generations}
    assert set(parents["4. Advice"]) >= {ids["2. Costs"], ids["3. Effects"]}
    assert answer.usage.span == 1 + len(GRAPH.split()) - 1 + 2 * 3


def test_children_see_what_their_parents_wrote() -> None:
    """The parents' texts, not only their titles, are in the child's prompt; those of others are not."""
    backend = ScriptedBackend(graph_script())
    ask(backend, params={"dependencies": True})
    prompts = {point_of(log.call): log.call.branch.question for log in backend.calls if point_of(log.call)}
    assert "3. Effects: text 3." in prompts[4]
    assert "2. Costs: text 2." in prompts[4]
    assert "text 1." not in prompts[4]
    assert "text" not in prompts[1]


def test_needs_that_cannot_be_met_are_dropped() -> None:
    """Cycles, later points and unknown ones lose their edge, with a warning, and the answer is whole."""
    text = outline(
        [
            {"title": "A one", "needs": [2]},
            {"title": "B two", "needs": [1, 2]},
            {"title": "C three", "needs": [9]},
        ]
    )
    answer = ask(ScriptedBackend(graph_script(text=text)), params={"dependencies": True})
    assert answer.active
    assert answer.text.count("text") == 3
    assert len(answer.warnings) == 3
    assert answer.warnings[0] == "point 1 cannot need point 2: only earlier ones count"


def test_a_failed_parent_takes_its_children_along() -> None:
    """What needs a failed point is left out with it; the rest is the answer."""
    answer = ask(ScriptedBackend(graph_script({1: failing()})), params={"dependencies": True})
    assert answer.text == "2. **Costs**: text 2."
    assert answer.warnings


def test_difficulty_picks_the_model() -> None:
    """The draft model writes the easy points; without one, the target writes all."""
    draft, target = ScriptedBackend(graph_script()), ScriptedBackend(graph_script())
    params = {"dependencies": True, "difficulty": True}
    answer = ask(target, roles={"draft": draft}, params=params)
    assert answer.text.count("text") == 4
    assert [point_of(log.call) for log in draft.calls] == [1]
    assert ask(ScriptedBackend(graph_script()), params=params).text == answer.text


# Parameters


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"max_points": 1}, "skeleton.max_points"),
        ({"router": "maybe"}, "skeleton.router"),
        ({"points": 3}, "skeleton.points"),
        ({"difficulty": True}, "skeleton.params"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], field: str) -> None:
    """A parameter that is unknown, out of bounds, or alone where it needs another is refused by name."""

    async def scenario() -> None:
        async with Orchestrator(ScriptedBackend(script())) as orch:
            await orch.ask(QUESTION, strategy="skeleton", params=params)

    with pytest.raises(InvalidParameter) as caught:
        run_virtual(scenario())
    assert caught.value.field == field


def test_a_server_that_dies_fails_the_run_with_its_error() -> None:
    """The error says what happened to the server."""
    error = BackendUnavailable("gone", retryable=False)
    with pytest.raises(AnabranchError, match="gone"):
        ask(ScriptedBackend(lambda call: Reply.failing(error)))
