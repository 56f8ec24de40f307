"""The history of runs: what it keeps, for whom, and how much; and how it is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from anabranch.cli.palette import colour
from anabranch.cli.timeline import Timeline
from anabranch.orchestrator.events import (
    AnswerDelta,
    Event,
    GenerationDelta,
    GenerationFinished,
    GenerationQueued,
    GenerationStarted,
    RunFinished,
    RunStarted,
    Warned,
)
from anabranch.orchestrator.run import KNOWN_ROLES
from anabranch.orchestrator.trace import read_trace
from anabranch.serving.proxy.pages import recording
from anabranch.serving.proxy.pages.history import History
from anabranch.serving.proxy.pages.recording import Recording
from anabranch.serving.proxy.requests import RequestInfo
from anabranch.testing import Reply
from proxy_server import QUESTION, chat
from upstream import until
from watched import Watched, points, watched

UI = Path(recording.__file__).parent / "ui"


class Clock:
    """The clock of recordings, as tests set it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time in recordings stands still until a test moves it."""
    made = Clock()
    monkeypatch.setattr(recording, "perf_counter", made)
    return made


def begun(run_id: str = "run", question: str = "Q") -> RunStarted:
    return RunStarted(
        t=0.0, run_id=run_id, strategy="do", question=question, backend="scripted:", started_at=1.0
    )


def delta(t: float, text: str = "word ", id: int = 1, tokens: int = 1) -> GenerationDelta:
    return GenerationDelta(t=t, id=id, text=text, tokens=tokens)


def ended(t: float = 9.0, error: str | None = None, **usage: int) -> RunFinished:
    return RunFinished(t=t, finish_reason="error" if error else "stop", summary={"usage": usage}, error=error)


def record(history: History, *events: Event, name: str = "run", owner: str = "") -> Callable[[Event], None]:
    """Feed a run to a history; gives its listener."""
    hear = history.run_opened(RequestInfo(request_id=f"req_{name}", owner=owner, model="m@do"))
    assert hear is not None
    hear(begun(name))
    for event in events:
        hear(event)
    return hear


def found(history: History, name: str = "run", owner: str = "") -> Recording:
    there = history.find(owner, name)
    assert there is not None
    return there


def texts(events: list[Event]) -> dict[int, str]:
    """What each generation wrote."""
    wrote: dict[int, str] = {}
    for event in events:
        if isinstance(event, GenerationDelta):
            wrote[event.id] = wrote.get(event.id, "") + event.text
    return wrote


# What is kept


def test_pieces_are_kept_as_slices_with_nothing_lost() -> None:
    """A thousand pieces of two branches become few events, with all of their text and tokens in them."""
    history = History(5)
    pieces = [delta(1 + index / 100, f"{index} ", id=1 + index % 2) for index in range(1000)]
    record(history, *pieces, ended(12.0))
    kept = found(history).read()
    assert len(kept) < 100
    assert texts(kept) == texts(list(pieces))
    assert sum(event.tokens for event in kept if isinstance(event, GenerationDelta)) == 1000


def test_the_first_piece_keeps_its_time() -> None:
    """The first piece of each generation is an event of its own, so that the time to the first token is exact."""
    history = History(5)
    record(history, delta(1.0, "a"), delta(1.001, "b"), delta(1.002, "c"), delta(1.003, "d", id=2))
    kept = [event for event in found(history).read() if isinstance(event, GenerationDelta)]
    assert [(event.t, event.id, event.text) for event in kept] == [
        (1.0, 1, "a"),
        (1.001, 1, "bc"),
        (1.003, 2, "d"),
    ]


def test_events_of_others_stay_as_they_are() -> None:
    """Events belong to all that listen: the history changes none that it was given."""
    given: list[Event] = [delta(1 + index / 1000) for index in range(50)]
    given += [AnswerDelta(t=1 + index / 1000, text="x") for index in range(50)]
    before = deepcopy(given)
    history = History(5)
    record(history, *given)
    found(history).read()
    assert given == before


async def test_a_recording_draws_the_same_picture() -> None:
    """A recorded run has the branches, states, figures, texts and times of the run itself."""
    heard: list[Event] = []
    history = History(5)
    hear = history.run_opened(RequestInfo(request_id="req"))
    assert hear is not None
    async with watched(points(lambda title: Reply.of(f"About {title}, " * 20, chunk_s=0.001))) as proxy:
        answer = await proxy.orchestrator.ask(QUESTION, strategy="skeleton", listeners=[heard.append, hear])
    kept = found(history, answer.run_id).read()
    assert len(kept) < len(heard) / 2
    full, short = Timeline.of(heard), Timeline.of(kept)
    assert short.answer_text == full.answer_text == answer.text
    assert short.summary == full.summary
    for id, branch in full.branches.items():
        other = short.branches[id]
        assert (other.text, other.tokens, other.state) == (branch.text, branch.tokens, branch.state)
        assert (other.first_token_at, other.ended_at) == (branch.first_token_at, branch.ended_at)


def test_text_beyond_the_limit_is_cut_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that writes too much the text is cut, with a warning in its events; tokens are still counted."""
    monkeypatch.setattr(recording, "MOST_TEXT", 100)
    history = History(5)
    hear = record(history, *(delta(1 + index, "x" * 10) for index in range(50)))
    there = found(history)
    kept = there.read()
    assert texts(kept) == {1: "x" * 100}
    assert [type(event) for event in kept].count(Warned) == 1
    assert there.cut
    assert there.tokens == 50
    hear(ended(60.0, work=50))
    assert isinstance(there.read()[-1], RunFinished)


def test_events_beyond_the_limit_are_dropped_but_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with too many branches keeps the first events, a warning, and its end."""
    monkeypatch.setattr(recording, "MOST_EVENTS", 50)
    history = History(5)
    queued = (
        GenerationQueued(t=1.0, id=id, parents=(), label="", role="target", depth=1) for id in range(1, 999)
    )
    record(history, *queued, ended(2.0))
    kept = found(history).read()
    assert len(kept) == 52
    assert isinstance(kept[-2], Warned)
    assert isinstance(kept[-1], RunFinished)


def test_long_words_are_cut() -> None:
    """Questions and errors of any length take bounded memory."""
    history = History(5)
    hear = history.run_opened(RequestInfo(request_id="req"))
    assert hear is not None
    hear(begun(question="?" * 10_000_000))
    hear(Warned(t=1.0, message="!" * 10_000_000))
    started, warned = found(history).read()
    assert isinstance(started, RunStarted)
    assert isinstance(warned, Warned)
    assert max(len(started.question), len(warned.message)) <= recording.MOST_WORDS + 1
    assert len(found(history).summary()["question"]) == 201


# Reading while it runs


def test_readings_add_up_to_the_whole(clock: Clock) -> None:
    """Who reads on from where it stopped gets every event once, and all of the text."""
    history = History(5)
    hear = record(history)
    there = found(history)
    seen: list[Event] = []
    for index in range(200):
        hear(delta(clock.now, f"{index} "))
        clock.now += 0.05
        if index % 10 == 9:
            seen += deepcopy(there.read(len(seen)))
    hear(ended(clock.now))
    seen += there.read(len(seen))
    assert seen == there.read()
    assert texts(seen) == {1: "".join(f"{index} " for index in range(200))}


def test_a_hasty_reader_does_not_fill_the_recording(clock: Clock) -> None:
    """Readings at every piece leave far fewer events than pieces; the text comes a little later."""
    history = History(5)
    hear = record(history)
    there = found(history)
    for _ in range(5000):
        hear(delta(clock.now))
        clock.now += 0.02
        there.read()
    assert len(there.events) < 500


def test_a_long_run_stays_bounded_while_it_is_watched(clock: Clock) -> None:
    """Fifty branches that are watched for an hour fit in, whole."""
    history = History(5)
    hear = record(history)
    there = found(history)
    while clock.now < 3600:
        for id in range(1, 51):
            hear(delta(clock.now, ".", id=id))
        clock.now += 0.5
        there.read()
    assert not there.cut


# Which runs are kept, and for whom


def test_the_oldest_that_ended_go_first_and_running_ones_stay() -> None:
    """With room for two, a run that goes on outlives those that ended."""
    history = History(2)
    hear = record(history, name="first")
    for name in ("second", "third", "fourth"):
        record(history, ended(), name=name)
    assert [each.run_id for each in history.runs("", 10)] == ["fourth", "first"]
    hear(ended())
    record(history, ended(), name="fifth")
    assert [each.run_id for each in history.runs("", 10)] == ["fifth", "first"]


def test_running_ones_may_be_more_than_fit() -> None:
    """Nothing that runs is forgotten; what ends then goes at once."""
    history = History(1)
    hears = [record(history, name=str(index)) for index in range(3)]
    assert len(history.runs("", 10)) == 3
    for hear in hears:
        hear(ended())
    assert [each.run_id for each in history.runs("", 10)] == ["2"]


def test_nothing_is_kept_where_nothing_may_be() -> None:
    """A history of no runs does not even listen."""
    assert History(0).run_opened(RequestInfo(request_id="req")) is None


def test_only_the_owner_finds_a_run() -> None:
    """A run is listed and found for the key that it was asked with, and for no other."""
    history = History(5)
    record(history, owner="ours")
    assert found(history, owner="ours").run_id == "run"
    assert found(history, "req_run", owner="ours").run_id == "run"
    for other in ("", "theirs"):
        assert history.find(other, "run") is None
        assert history.find(other, "req_run") is None
        assert history.runs(other, 10) == []


def test_a_request_of_several_choices_is_found_by_its_first_run() -> None:
    """A request with n > 1 has several runs, all in the list; its id means the first."""
    history = History(5)
    request = RequestInfo(request_id="req")
    for name in ("a", "b"):
        hear = history.run_opened(request)
        assert hear is not None
        hear(begun(name))
    assert found(history, "req").run_id == "a"
    assert len(history.runs("", 10)) == 2


def test_a_run_ends_with_its_request() -> None:
    """A run that never told of its end does not run for ever."""
    history = History(5)
    request = RequestInfo(request_id="req")
    hear = history.run_opened(request)
    assert hear is not None
    hear(begun())
    assert found(history).state == "running"
    history.request_ended(request)
    assert found(history).state == "failed"
    assert isinstance(found(history).read()[-1], RunFinished)


@pytest.mark.parametrize(
    ("error", "state"), [(None, "done"), ("CancelledError()", "stopped"), ("the server is down", "failed")]
)
def test_states(error: str | None, state: str) -> None:
    """How a run ended can be told from its state."""
    history = History(5)
    record(history, ended(error=error, work=7, branches=2))
    summary = found(history).summary()
    assert (summary["state"], summary["tokens"], summary["branches"]) == (state, 7, 2)


def test_figures_while_it_runs() -> None:
    """Branches and tokens are counted as they come."""
    history = History(5)
    started = GenerationStarted(t=0.5, id=1, backend="scripted:")
    finished = GenerationFinished(t=3.0, id=1, finish_reason="stop", prompt=5, cached=0, completion=2)
    record(history, started, delta(1.0), delta(2.0), finished)
    summary = found(history).summary()
    assert (summary["state"], summary["branches"], summary["tokens"]) == ("running", 1, 2)
    assert (summary["strategy"], summary["model"], summary["request_id"]) == ("do", "m@do", "req_run")


# Over the wire


async def ask(proxy: Watched, **options: Any) -> str:
    """A chat completion by the skeleton; gives its run's id."""
    answer = await proxy.client.chat("scripted@skeleton", **options)
    assert answer.status == 200, answer.content
    return answer.headers["x-anabranch-run-id"]


async def test_a_request_leaves_a_run(tmp_path: Path) -> None:
    """A run is listed, found by its id and by its request's, and comes as a trace file that reads as one."""
    async with watched(points({})) as proxy:
        run_id = await ask(proxy, headers={"x-request-id": "my-request"})
        [listed] = await proxy.listed()
        assert listed["run_id"] == run_id
        assert listed["request_id"] == "my-request"
        assert (listed["strategy"], listed["model"]) == ("skeleton", "scripted@skeleton")
        assert (listed["question"], listed["state"], listed["branches"]) == (QUESTION, "done", 4)
        assert listed["tokens"] > 0
        one = await proxy.client.ask(f"/v1/anabranch/runs/{run_id}")
        same = await proxy.client.ask("/v1/anabranch/runs/my-request")
        assert one.json == same.json
        assert one.headers["cache-control"] == "no-store"
        assert one.json["events"][0]["type"] == "run_started"
        assert one.json["events"][-1]["type"] == "run_finished"
        assert one.json["next"] == len(one.json["events"])
        trace = await proxy.client.ask(f"/v1/anabranch/runs/{run_id}?format=jsonl")
    assert trace.headers["content-type"].startswith("application/x-ndjson")
    file = tmp_path / "run.jsonl"
    file.write_bytes(trace.content)
    timeline = Timeline.of(read_trace(file))
    assert timeline.finished
    assert len(timeline.branches) == 4


async def test_the_events_come_from_where_the_reader_stopped() -> None:
    """`?after=N` leaves out what the reader has."""
    async with watched(points({})) as proxy:
        path = f"/v1/anabranch/runs/{await ask(proxy)}"
        whole = (await proxy.client.ask(path)).json
        rest = (await proxy.client.ask(f"{path}?after=3")).json
        nothing = (await proxy.client.ask(f"{path}?after={whole['next']}")).json
    assert rest["events"] == whole["events"][3:]
    assert rest["next"] == nothing["next"] == whole["next"]
    assert nothing["events"] == []


async def test_the_newest_come_first_and_as_many_as_wanted() -> None:
    """The list begins with the newest run, and `?limit=` says how long it is."""
    async with watched(points({})) as proxy:
        ids = [await ask(proxy) for _ in range(3)]
        assert [run["run_id"] for run in await proxy.listed()] == ids[::-1]
        limited = await proxy.client.ask("/v1/anabranch/runs?limit=2")
    assert [run["run_id"] for run in limited.json["data"]] == ids[:0:-1]


async def test_half_a_character_does_not_break_the_reply() -> None:
    """Half a surrogate pair, which a model may write, is replaced on the way out."""
    async with watched(points({"Sleep enough": Reply.of("half \ud83d of it")})) as proxy:
        history, asked = proxy.history, {"strategy": "skeleton"}
        hear = history.run_opened(RequestInfo(request_id="req"))
        assert hear is not None
        answer = await proxy.orchestrator.ask(QUESTION, **asked, listeners=[hear])  # type: ignore[arg-type]
        for form in ("json", "jsonl"):
            reply = await proxy.client.ask(f"/v1/anabranch/runs/{answer.run_id}?format={form}")
            assert reply.status == 200
            assert "half ?" in reply.content.decode()


@pytest.mark.parametrize("key", [None, "theirs", "neither"])
async def test_others_see_nothing(key: str | None) -> None:
    """Without a key there is a 401; with another one the run does not exist."""
    ours = {"authorization": "Bearer ours"}
    async with watched(points({}), keys=("ours", "theirs")) as proxy:
        run_id = await ask(proxy, headers=ours)
        assert len(await proxy.listed(headers=ours)) == 1
        headers = {"authorization": f"Bearer {key}"} if key else {}
        one = await proxy.client.ask(f"/v1/anabranch/runs/{run_id}", headers=headers)
        several = await proxy.client.ask("/v1/anabranch/runs", headers=headers)
    if key == "theirs":
        assert one.status == 404
        assert one.error["code"] == "run_not_found"
        assert several.json["data"] == []
    else:
        assert (one.status, several.status) == (401, 401)


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/v1/anabranch/runs?limit=0", 400, "limit"),
        ("GET", "/v1/anabranch/runs?limit=many", 400, "limit"),
        ("GET", "/v1/anabranch/runs/ID?after=-1", 400, "after"),
        ("GET", "/v1/anabranch/runs/ID?after=\u00b2", 400, "after"),
        ("GET", "/v1/anabranch/runs/ID?format=xml", 400, "format"),
        ("GET", "/v1/anabranch/runs/nothing", 404, None),
        ("GET", "/v1/anabranch/runs/a/b", 404, None),
        ("GET", "/v1/anabranch", 404, None),
        ("GET", "/v1/anabranch/else", 404, None),
        ("POST", "/v1/anabranch/runs", 405, None),
        ("DELETE", "/v1/anabranch/runs/ID", 405, None),
        ("GET", "/ui/..%2frecording.py", 404, None),
        ("GET", "/ui/missing.js", 404, None),
    ],
)
async def test_errors(method: str, path: str, status: int, param: str | None) -> None:
    """Whatever is wrong is said in OpenAI's envelope, and nothing below our own paths goes upstream."""
    async with watched(points({})) as proxy:
        run_id = await ask(proxy)
        encoded = path.replace("ID", run_id).replace("\u00b2", "%C2%B2")
        reply = await proxy.client.ask(encoded, method=method)
    assert reply.status == status
    assert reply.error["param"] == param


async def test_a_client_that_goes_stops_its_run() -> None:
    """The run of a client that went away is in the history, as stopped."""
    async with watched(points(lambda _: Reply.hanging("some words"))) as proxy:
        body = chat("scripted@skeleton", stream=True)
        async with proxy.client.open("/v1/chat/completions", body) as response:
            await response.content.readany()
            [run] = await proxy.listed()
            assert run["state"] == "running"
        await until(lambda: proxy.history.runs("", 1)[0].state != "running")
        [run] = await proxy.listed()
    assert run["state"] == "stopped"


async def test_runs_of_many_requests_do_not_mix() -> None:
    """Runs side by side each have their own events."""
    async with watched(points(lambda title: Reply.of(f"About {title}.", delay_s=0.01))) as proxy:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(ask(proxy)) for _ in range(8)]
        for task in asked:
            body = (await proxy.client.ask(f"/v1/anabranch/runs/{task.result()}")).json
            assert body["branches"] == sum(event["type"] == "generation_started" for event in body["events"])


# The page's files


async def test_the_page_may_load_nothing_from_elsewhere() -> None:
    """Page and files want no key, come with a policy that keeps everything foreign out, and are asked for anew."""
    async with watched(points({}), keys=("ours",)) as proxy:
        for path in ("/ui", *(f"/ui/{file.name}" for file in UI.iterdir())):
            reply = await proxy.client.ask(path)
            assert reply.status == 200, path
            assert reply.headers["content-security-policy"].startswith("default-src 'self';")
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["cache-control"] == "no-cache"
            again = await proxy.client.ask(path, headers={"if-none-match": reply.headers["etag"]})
            assert (again.status, again.content) == (304, b"")
        page = await proxy.client.ask("/ui/", allow_redirects=False)
        assert page.headers["location"] == "../ui"


def test_the_page_puts_no_text_in_as_markup() -> None:
    """No script of the page makes markup of text."""
    for file in UI.glob("*.js"):
        source = file.read_text()
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert way not in source, f"{file.name} uses {way}"


@pytest.mark.parametrize("role", [*KNOWN_ROLES, "critic", "planner", "voter", "worker", "reader"])
def test_the_page_has_the_colours_of_the_pictures(role: str) -> None:
    """A role has the same colour in the page as in pictures and in the terminal."""
    css = (UI / "ui.css").read_text()
    name = role if role in KNOWN_ROLES else f"other-{crc32(role.encode()) % 4}"
    assert f"--{name}: {colour(role).light};" in css
    assert f"--{name}: {colour(role).dark};" in css
