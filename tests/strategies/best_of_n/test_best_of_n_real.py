"""Best-of-N on real servers with a small real model: one prefix, votes, confidences, and traces that are stopped."""

from __future__ import annotations

import pytest

from anabranch import Answer, Orchestrator, Sampling
from anabranch.strategies.best_of_n import BestOfN

SERVERS = (
    pytest.param("local_backend_url", marks=pytest.mark.llama),
    pytest.param("sglang_url", marks=pytest.mark.sglang),
)
QUESTION = "What is the capital of France: (A) Rome, (B) Paris, (C) Berlin? Reply with the letter in parentheses alone."


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


async def ask(url: str, strategy: BestOfN, *, question: str = QUESTION) -> Answer:
    async with Orchestrator(url) as orch:
        sampling = Sampling(temperature=0.8, seed=3)
        return await orch.ask(question, strategy=strategy, sampling=sampling, max_tokens=40, stop=["."])


async def test_traces_share_their_prefix_and_vote(url: str) -> None:
    """The prompt is computed by one of them at most; each has a fate; the answer is one of them."""
    strategy = BestOfN(n=4, stop="fixed", answers="text", prune=())
    answer = await ask(url, strategy)
    assert len(answer.generations) == 4
    computed = [each for each in answer.generations if each.cached < each.prompt - 32]
    assert len(computed) <= 1, [(each.prompt, each.cached) for each in answer.generations]
    assert answer.text
    traces = answer.figures["traces"]
    assert isinstance(traces, dict)
    assert sum(count for name, count in traces.items() if name != "asked") == 4


async def test_confidences_come_with_the_stream_and_stop_traces(url: str) -> None:
    """With a threshold that the best warm-up trace sets, and short windows, some trace of eight more falls below."""
    strategy = BestOfN(
        n=12,
        wave=4,
        certainty=0.9999,
        answers="text",
        vote="lowest",
        prune=("confidence",),
        warm_up=2,
        window=4,
        keep_confident=0.1,
    )
    answer = await ask(url, strategy, question="Write a sentence about rivers.")
    traces = answer.figures["traces"]
    assert isinstance(traces, dict)
    assert answer.figures["confidences"] == "streamed log-probabilities"
    assert traces["pruned"] >= 1
    assert answer.usage.wasted > 0
    assert not any("count alike" in warning for warning in answer.warnings)
