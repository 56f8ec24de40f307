"""Lookahead on real servers: a target and a draft that `anabranch launch` has started, and the embedded model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from anabranch import Orchestrator, Sampling
from anabranch.serving import launch
from anabranch.strategies.lookahead import Lookahead
from sglang_server import require_environment

pytestmark = [pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=0.0)
QUESTION = "Write three short sentences about rivers, each on a line of its own."


def _ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, str]]:
    """A target and a draft of the same small real model, by one command; Ctrl-C ends both."""
    require_environment()
    port = launch.free_port()
    command = ["launch", "--profile", "cpu", "--draft-server", "smollm2", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "anabranch", *command], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (_ready(port) and _ready(port + 1)):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.5)
        yield f"sglang://127.0.0.1:{port}", f"sglang://127.0.0.1:{port + 1}"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        process.stderr.close()
        assert not _ready(port)
        assert not _ready(port + 1)


@pytest.mark.sglang
async def test_with_a_draft_that_is_the_target_every_step_is_accepted(pair: tuple[str, str]) -> None:
    """Greedy, exact, token for token: the answer is the target's own, most of it written by the draft.

    Synchronous, since a draft that is as slow as the target always comes too late in the asynchronous form.
    """
    target, draft = pair
    strategy = Lookahead(verifier="exact", boundary="\n", depth=3, step_tokens=60, in_step=True)
    async with Orchestrator(target, roles={"draft": draft}) as orch:
        plain = await orch.ask(QUESTION, strategy="sequential", sampling=GREEDY, max_tokens=90)
        answer = await orch.ask(QUESTION, strategy=strategy, sampling=GREEDY, max_tokens=90)
    assert answer.text.split() == plain.text.split()
    drafts = answer.figures["drafts"]
    assert isinstance(drafts, dict)
    assert drafts["accepted"] >= 1
    assert drafts["rejected"] == 0
    drafted = [record for record in answer.generations if record.role == "draft"]
    assert any(record.cached > record.prompt // 2 for record in drafted)  # each continues the one before


@pytest.mark.sglang
async def test_the_target_s_likelihood_decides(pair: tuple[str, str]) -> None:
    """What the target finds likely stands in the answer, and the target need not write it."""
    target, draft = pair
    async with Orchestrator(target, roles={"draft": draft}) as orch:
        answer = await orch.ask(
            QUESTION,
            strategy=Lookahead(verifier="likelihood", boundary="\n", depth=1, step_tokens=60),
            sampling=GREEDY,
            max_tokens=60,
        )
    assert answer.text.strip()
    drafts = answer.figures["drafts"]
    assert isinstance(drafts, dict)
    assert drafts["accepted"] + drafts["rejected"] >= 1
    assert not answer.warnings


@pytest.mark.llama
async def test_by_the_target_s_own_rating_on_the_embedded_model() -> None:
    """One server plays every role; the answer comes to an end, and says what became of the drafts."""
    os.environ.setdefault("ANABRANCH_LOCAL_THREADS", "1")
    async with Orchestrator("local:") as orch:
        answer = await orch.ask(
            QUESTION, strategy="specreason", params={"boundary": "\n"}, sampling=GREEDY, max_tokens=60
        )
    assert answer.text.strip()
    assert set(answer.figures) >= {"drafts", "acceptance", "target_span"}
    judged = [record for record in answer.generations if record.label == "score"]
    assert judged
