"""The page that shows runs, in a headless Chromium, before the proxy with a scripted backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from anabranch.orchestrator.errors import BackendError
from anabranch.orchestrator.run import Run
from anabranch.testing import Reply
from browser import Tab, chromium, find_chromium, page
from engine import Do
from proxy_server import QUESTION, chat
from upstream import until
from watched import Watched, points, watched

EVIL = "<img src=x onerror=\"window.evil='ran'\"><script>window.evil='ran'</script>"
BARS = "#picture .bar"
"""The branches in the picture."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running Chromium."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with chromium(program) as where:
        yield where


@pytest.fixture
async def tab(address: str) -> AsyncIterator[Tab]:
    """A fresh page of it; whatever goes wrong in it fails the test."""
    async with page(address) as tab:
        await tab.size(1200, 900)
        yield tab
    assert tab.problems == []


async def show(tab: Tab, proxy: Watched, fragment: str = "") -> None:
    """Open the page, and wait until it has the list of runs."""
    await tab.open(f"{proxy.client.url}/ui{fragment}")
    await tab.until("document.querySelector('#main') && !document.querySelector('#main').hidden")


def label(name: str) -> str:
    """Selects the bar of the branch with this name."""
    return f"{BARS}[aria-label^={json.dumps(name + ':')}]"


async def test_a_run_shows_up_and_grows(tab: Tab) -> None:
    """A run appears by itself, its bars grow as time goes on, its answer as it is written; in the end it is done."""
    slow = Reply.of("word " * 60, chunk_s=0.1)
    async with watched(points({"Sleep enough": slow})) as proxy:
        await show(tab, proxy)
        assert "No runs yet" in await tab.text("#empty")
        async with proxy.client.open(
            "/v1/chat/completions", chat("scripted@skeleton", stream=True)
        ) as response:
            await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
            assert "running" in await tab.text("#runs")
            assert QUESTION in await tab.text("#question")
            bar = f"document.querySelector({json.dumps(label('1. Sleep enough') + ' .prefill')}).width.baseVal.value"
            text = "document.querySelector('#answer-text').textContent.length"
            moved = f"new Promise(done => setTimeout(() => done([{bar}, {text}]), 200))"
            await tab.until(f"{text} > 20")
            before = await tab.js(moved)
            await tab.until(f"{text} > {before[1]} && {bar} !== {before[0]}")
            assert await tab.count("#picture .now") == 1
            await response.read()
        await tab.until("document.querySelector('#runs .done') !== null")
        await tab.until("!document.querySelector('#picture .now')")
        assert "wall" in await tab.text("#figures")
        assert (await tab.text("#answer-text")).count("word") == 60


async def test_bars_grow_between_two_readings(tab: Tab) -> None:
    """What runs grows with the clock, also while no news comes."""
    async with watched(points(lambda _: Reply.hanging("some words"))) as proxy:
        body = chat("scripted@skeleton", stream=True)
        async with proxy.client.open("/v1/chat/completions", body):
            await show(tab, proxy)
            await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
            await tab.js("window.fetch = () => new Promise(() => {}); 1")
            line = "document.querySelector('#picture .now').x1.baseVal.value"
            await tab.until(f"{line} > 0")
            await tab.js(
                "new Promise(done => { let moves = 0; let last = null; const look = () => {"
                f" const x = {line}; moves += x !== last; last = x; moves > 5 ? done() : setTimeout(look, 50); }};"
                " look(); })"
            )


async def test_each_branch_is_a_bar_and_each_dependency_a_line(tab: Tab) -> None:
    """Forks and joins of a graph of branches are drawn, one bar a branch and one line from each parent."""

    async def diamond(run: Run) -> None:
        first = await run.generate(run.question.user("plan"), label="plan")
        async with run.scope():
            lives = [run.generate(run.question.after(first).user(f"{n}"), label=f"part {n}") for n in range(3)]
            parts = [await live for live in lives]
        await run.relay(run.generate(run.question.after(*parts).user("sum up"), label="sum"))

    async with watched(lambda call: Reply.of(f"re: {call.branch.question}")) as proxy:
        await proxy.run(Do(diamond), "Draw this")
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 5")
        assert await tab.count("#picture .edge.fork") == 3
        assert await tab.count("#picture .edge.join") == 3
        assert await tab.count("#picture .edge.answer") == 1
        order = await tab.js(f"[...document.querySelectorAll({json.dumps(BARS)})].map(e => e.dataset.id)")
        assert order == ["1", "2", "3", "4", "5"]


async def test_what_failed_and_what_was_wasted_is_marked(tab: Tab) -> None:
    """A failed branch has its mark and its reason, a wasted one is hatched, and a stopped one has its own mark."""
    replies = {
        "fails": Reply.failing(BackendError("the server hung up"), after="a few words"),
        "hangs": Reply.hanging("some text"),
    }

    async def work(run: Run) -> None:
        async with run.scope():
            names = ("good", "fails", "hangs", "rejected")
            lives = {name: run.generate(run.question.user(name), label=name) for name in names}
            await lives["good"]
            with pytest.raises(BackendError):
                await lives["fails"]
            run.discard(await lives["rejected"], "not needed")
            await asyncio.sleep(0.1)
            lives["hangs"].cancel()
        run.emit("done")

    def script(call: object) -> Reply:
        return replies.get(call.branch.question, Reply.of("all is well"))  # type: ignore[attr-defined]

    async with watched(script) as proxy:
        await proxy.run(Do(work))
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        marks = {"good": (0, 0, 0), "fails": (1, 1, 0), "hangs": (0, 1, 1), "rejected": (0, 1, 0)}
        for name, expected in marks.items():
            found = [
                await tab.count(f"{label(name)} {mark}")
                for mark in (".mark.bad", "rect[fill^='url']", ".mark.warn")
            ]
            assert tuple(found) == expected, name
        await tab.click(label("fails"))
        await tab.until("document.querySelector('#branch-note').textContent.includes('hung up')")
        legend = await tab.text("#legend")
        for word in ("target", "wasted", "failed", "stopped"):
            assert word in legend


async def test_a_click_shows_the_text_of_a_branch(tab: Tab) -> None:
    """A click on a bar shows what the branch wrote; so do the arrow keys, from bar to bar."""
    async with watched(points({})) as proxy:
        await proxy.client.chat("scripted@skeleton")
        await show(tab, proxy)
        await tab.until(f"document.querySelector({json.dumps(label('2. Eat greens'))}) !== null")
        assert await tab.js("document.querySelector('#branch').hidden")
        await tab.click(label("2. Eat greens"))
        assert await tab.text("#branch-name") == "2. Eat greens"
        assert "About Eat greens." in await tab.text("#branch-text")
        assert await tab.count(f"{BARS}[aria-selected=true]") == 1
        await tab.js(f"document.querySelector({json.dumps(label('2. Eat greens'))}).focus()")
        await tab.press("ArrowDown")
        assert "About Walk daily." in await tab.text("#branch-text")
        await tab.press("Home")
        assert await tab.text("#branch-name") == "outline"
        assert await tab.count(f"{BARS}[tabindex='0']") == 1


async def test_text_is_never_markup(tab: Tab) -> None:
    """Questions, labels, errors and outputs with markup in them are shown as they were written, and do nothing."""

    async def work(run: Run) -> None:
        await run.relay(run.generate(run.question, label=EVIL))
        run.warn(EVIL)

    async with watched(lambda call: Reply(chunks=(EVIL, "\u202e", EVIL), reasoning=(EVIL,))) as proxy:
        await proxy.run(Do(work), EVIL, model=EVIL, request_id=EVIL)
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 1")
        await tab.click(BARS)
        for place in (
            "#runs",
            "#question",
            "#answer-text",
            "#branch-name",
            "#branch-text",
            "#branch-reasoning",
        ):
            assert "<img src=x onerror" in await tab.text(place), place
        assert "<img src=x" in await tab.text("#notes")
        assert "\u202e" not in await tab.text("#answer-text")
        await asyncio.sleep(0.3)
        assert await tab.js("window.evil") is None
        assert await tab.count("main img, main script, #picture image") == 0


async def test_a_proxy_with_keys_asks_for_one(address: str) -> None:
    """Without a key there is a form; a wrong key is said to be one; the right one is kept for the tab."""
    async with watched(points({}), keys=("right",)) as proxy, page(address) as tab:
        await proxy.client.chat("scripted@skeleton", headers={"authorization": "Bearer right"})
        await tab.open(f"{proxy.client.url}/ui")
        await tab.until("document.activeElement && document.activeElement.id === 'key'")
        assert await tab.text("#key-problem") == ""
        await tab.type("wr\u00f6ng")
        await tab.press("Enter")
        await tab.until("document.querySelector('#key-problem').textContent.includes('not accepted')")
        await tab.type("right")
        await tab.press("Enter")
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        assert await tab.js("document.querySelector('#key-form').hidden")
        await tab.open(f"{proxy.client.url}/ui")
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        assert await tab.js("Object.keys(localStorage).length") == 0
        assert all("401" in problem for problem in tab.problems), tab.problems


async def test_the_reader_chooses_a_run(tab: Tab) -> None:
    """The newest run is shown until another one is chosen, which then stays, also when the page is opened by its address."""
    async with watched(points({})) as proxy:
        for question in ("Some tips for cooking?", "Some tips for cleaning?"):
            assert (await proxy.client.chat("scripted@skeleton", question)).status == 200
        await show(tab, proxy)
        await tab.until("document.querySelector('#question').textContent.includes('cleaning')")
        await tab.click("#runs li:nth-child(2) button")
        await tab.until("document.querySelector('#question').textContent.includes('cooking')")
        assert (await proxy.client.chat("scripted@skeleton", "Some tips for reading?")).status == 200
        await tab.until("document.querySelectorAll('#runs li').length === 3")
        assert "cooking" in await tab.text("#question")
        assert await tab.count("#runs [aria-current=true]") == 1
        shown = await tab.js("location.hash")
        await tab.click("#follow")
        await tab.until("document.querySelector('#question').textContent.includes('reading')")
        await tab.open("about:blank")
        await show(tab, proxy, shown)
        await tab.until("document.querySelector('#question').textContent.includes('cooking')")


async def test_a_run_that_is_not_there(tab: Tab) -> None:
    """The address of a run that is no longer kept says so, and the list is there to go on from."""
    async with watched(points({})) as proxy:
        await proxy.client.chat("scripted@skeleton")
        await show(tab, proxy, "#run=gone")
        await tab.until("document.querySelector('#status').textContent.includes('not among the recent')")
        await tab.click("#runs button")
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
    tab.problems[:] = [problem for problem in tab.problems if "404" not in problem]


async def test_a_stopped_proxy_is_waited_for(address: str) -> None:
    """When the proxy cannot be reached the page says so, and keeps what it shows."""
    async with page(address) as tab:
        async with watched(points({})) as proxy:
            await proxy.client.chat("scripted@skeleton")
            await show(tab, proxy)
            await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        await tab.until("document.querySelector('#status').textContent.includes('cannot be reached')")
        assert await tab.count(BARS) == 4


async def test_nothing_is_asked_for_while_nobody_looks(tab: Tab) -> None:
    """A hidden page asks for nothing; when it is shown again it goes on."""
    async with watched(points({})) as proxy:
        await show(tab, proxy)
        await tab.js(
            "window.asked = 0; const real = fetch; window.fetch = (...a) => (window.asked++, real(...a));"
            "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
            "window.away = true; document.dispatchEvent(new Event('visibilitychange')); 1"
        )
        await asyncio.sleep(0.3)
        asked = await tab.js("window.asked")
        await asyncio.sleep(3.5)
        assert await tab.js("window.asked") == asked
        await tab.js("window.away = false; document.dispatchEvent(new Event('visibilitychange')); 1")
        await tab.until(f"window.asked > {asked}")


@pytest.mark.parametrize(("width", "height"), [(320, 480), (800, 600), (2560, 1440)])
async def test_it_fits_any_window(tab: Tab, width: int, height: int) -> None:
    """In small and in large windows nothing hangs out at the side, and thirty branches all have a place."""

    async def many(run: Run) -> None:
        async with run.scope():
            lives = [
                run.generate(run.question.user(str(n)), label=f"a rather long label {n} " * 9)
                for n in range(30)
            ]
            for live in lives:
                await live
        run.emit("W" * 3000)

    async with watched(lambda call: Reply.of("some words")) as proxy:
        await proxy.run(Do(many), "Unbroken" * 80)
        await tab.size(width, height)
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 30")
        assert await tab.js("document.documentElement.scrollWidth <= innerWidth")
        frame, last = await tab.js(
            "[document.querySelector('#frame'), document.querySelector('#picture .bar:last-child')]"
            ".map(e => e.getBoundingClientRect().bottom)"
        )
        assert last <= frame


async def test_both_colour_schemes(tab: Tab) -> None:
    """Page and bars have other colours where the reader prefers the dark."""
    async with watched(points({})) as proxy:
        await proxy.client.chat("scripted@skeleton")
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        look = f"[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector({json.dumps(BARS + ' .prefill')})).fill]"
        seen = []
        for scheme in ("light", "dark"):
            await tab.prefer(scheme)
            seen.append(await tab.js(look))
        assert seen == [["rgb(238, 241, 245)", "rgb(47, 111, 222)"], ["rgb(9, 12, 17)", "rgb(110, 168, 255)"]]


async def test_the_trace_can_be_saved(tab: Tab) -> None:
    """The button asks for the run as a trace file."""
    async with watched(points({})) as proxy:
        await proxy.client.chat("scripted@skeleton")
        await show(tab, proxy)
        await tab.until(f"document.querySelectorAll({json.dumps(BARS)}).length === 4")
        await tab.js(
            "window.saved = []; URL.createObjectURL = (blob) => (blob.text().then((t) => saved.push(t)), '#');"
            "HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }; 1"
        )
        await tab.click("#save")
        await tab.until("saved.length === 2")
        saved = await tab.js("saved")
    assert any(each.startswith("run-") and each.endswith(".jsonl") for each in saved)
    assert any('"run_started"' in each for each in saved)


async def test_a_client_that_went_away_leaves_a_stopped_run(tab: Tab) -> None:
    """A run whose client went is shown as stopped, and its bars grow no more."""
    async with watched(points(lambda _: Reply.hanging("some words"))) as proxy:
        body = chat("scripted@skeleton", stream=True)
        async with proxy.client.open("/v1/chat/completions", body) as response:
            await response.content.readany()
            await until(lambda: proxy.history.runs("", 1)[0].branches == 4)
        await until(lambda: proxy.history.runs("", 1)[0].state == "stopped")
        await show(tab, proxy)
        await tab.until("document.querySelector('#runs .stopped') !== null")
        await tab.until("document.querySelector('#notes').textContent.includes('the client went away')")
        assert await tab.count(f"{BARS}.stopped") == 3
        assert await tab.count("#picture .now") == 0
