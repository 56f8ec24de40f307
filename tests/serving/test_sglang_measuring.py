"""Measurements against real SGLang servers on the CPU: likelihoods, embeddings, rewards.

The models that embed and reward are random: what is checked is whose numbers come back, not their sense.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch import Branch, Orchestrator, Run, Sampling
from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.errors import UnsupportedCapability
from anabranch.serving import launch
from anabranch.serving.backends.sglang.connection import Connection
from engine import Do
from sglang_server import require_environment

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]


@contextmanager
def serving(model: str, *flags: str) -> Iterator[str]:
    """A server of its own, as `sglang://HOST:PORT`."""
    require_environment()
    port = launch.free_port()
    command = launch.command("cpu", model=model, port=port, extra_flags=flags)
    with launch.ServerProcess(command, url=f"http://127.0.0.1:{port}"):
        yield f"sglang://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def embedder() -> Iterator[str]:
    """The tiny model, run for embeddings."""
    with serving("tiny", "--is-embedding") as url:
        yield url


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny model with a head of one number, as reward models have it."""
    folder = tmp_path_factory.mktemp("reward") / "tiny"
    shutil.copytree(require_environment().models["tiny"], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    (folder / "config.json").write_text(json.dumps(config))
    width = config["hidden_size"]
    _safetensors(folder / "score.safetensors", "score.weight", [(-1.0) ** i for i in range(width)], (1, width))
    with serving(str(folder), "--is-embedding") as url:
        yield url


def _safetensors(path: Path, name: str, values: list[float], shape: tuple[int, ...]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    header = {name: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, len(data)]}}
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


async def on(url: str, work: Callable[[Run], Awaitable[None]]) -> Answer:
    """Run a strategy greedily on one server."""
    async with Orchestrator(url) as orch:
        return await orch.ask(
            "What is the capital of France?", strategy=Do(work), sampling=Sampling(temperature=0)
        )


async def asked(url: str, path: str, body: dict[str, Any]) -> Any:
    """What the server itself answers."""
    connection = Connection(url.replace("sglang://", "http://"))
    try:
        return await connection.post(path, body)
    finally:
        await connection.aclose()


async def test_the_likelihood_of_a_step_is_what_the_server_reported_while_writing_it(sglang_url: str) -> None:
    """The same tokens have the same log-probabilities, and the prompt before them comes from the cache."""

    async def work(run: Run) -> None:
        step = await run.generate(run.question, max_tokens=6, top_logprobs=1)
        measured = await run.likelihood(step.branch)
        assert measured == pytest.approx([token.logprob for token in step.logprobs], abs=1e-3)
        assert len(measured) == 6

    answer = await on(sglang_url, work)
    wrote, measured = answer.generations
    assert measured.completion == 0
    assert measured.prompt == wrote.prompt + 6
    assert measured.cached >= wrote.prompt - 1


async def test_sense_is_likelier_than_nonsense(sglang_url: str) -> None:
    """Text that no model wrote is measured as well."""

    async def work(run: Run) -> None:
        async def each(text: str) -> float:
            logprobs = await run.likelihood(run.question.say(text))
            return sum(logprobs) / len(logprobs)

        assert await each("The capital of France is Paris.") > await each("Capital the is France Paris of.") + 1

    await on(sglang_url, work)


async def test_a_server_that_writes_measures_no_embeddings_and_no_rewards(sglang_url: str) -> None:
    """It says what it does measure."""

    async def work(run: Run) -> None:
        for ask in (run.embed, run.reward):
            with pytest.raises(UnsupportedCapability, match="it measures: likelihood"):
                await ask(run.question.say("x"))

    await on(sglang_url, work)


async def test_embeddings(embedder: str) -> None:
    """A vector of length one, the server's own; the same text has the same vector, and only the last turn counts."""
    vectors: list[tuple[float, ...]] = []

    async def work(run: Run) -> None:
        texts = (Branch.of("the last turn"), run.question.say("the last turn"), Branch.of("another"))
        vectors.extend([await run.embed(branch) for branch in texts])
        with pytest.raises(UnsupportedCapability, match="it measures: embedding"):
            await run.likelihood(run.question.say("x"))
        with pytest.raises(UnsupportedCapability, match="writes no text; it measures: embedding"):
            await run.generate(run.question)

    answer = await on(embedder, work)
    assert vectors[0] == pytest.approx(
        (await asked(embedder, "/encode", {"text": "the last turn"}))["embedding"], abs=1e-4
    )
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[2], abs=1e-2)
    assert math.hypot(*vectors[0]) == pytest.approx(1.0, abs=1e-4)
    assert answer.usage.prompt > 0
    assert answer.usage.completion == 0


async def test_embeddings_by_the_openai_api_are_the_same(embedder: str) -> None:
    """The same server, asked through `/v1/embeddings`, gives the same vector."""
    vectors: list[tuple[float, ...]] = []

    async def work(run: Run) -> None:
        vectors.append(await run.embed(run.question.say("the last turn")))

    for url in (embedder, embedder.replace("sglang://", "http://")):
        answer = await on(url, work)
        assert answer.usage.prompt > 0
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-4)


async def test_rewards(scorer: str) -> None:
    """The value of the conversation through the model's own chat template, the turn so far behind it."""
    found: list[float] = []

    async def work(run: Run) -> None:
        found.extend([await run.reward(run.question.say(text)) for text in ("Paris.", "Paris.", "Rome.")])

    await on(scorer, work)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    template = (await asked(scorer, "/tokenize", {"model": "tiny", "messages": messages}))["tokens"]
    said = (await asked(scorer, "/tokenize", {"model": "tiny", "prompt": "Paris."}))["tokens"]
    (expected,) = (await asked(scorer, "/classify", {"input_ids": [*template, *said]}))["embedding"]
    assert found[0] == pytest.approx(expected, abs=1e-3)
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    assert found[0] != pytest.approx(found[2], abs=1e-3)
