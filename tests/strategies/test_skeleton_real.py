"""Skeleton on real servers with a small real model: the outline is valid, the prefix is shared, the answer is whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.events import Event, GenerationDelta
from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.sampling import Sampling
from anabranch.strategies.outline import parse_json_outline
from anabranch.strategies.skeleton import Skeleton

SERVERS = (pytest.param("local", marks=pytest.mark.llama), pytest.param("sglang", marks=pytest.mark.sglang))
QUESTION = "How can I improve my time management skills?"


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("local_backend_url" if request.param == "local" else "sglang_url"))


@pytest.fixture
async def orch(url: str) -> AsyncIterator[Orchestrator]:
    async with Orchestrator(url) as orchestrator:
        yield orchestrator


async def ask(orch: Orchestrator, **params: object) -> tuple[Answer, str]:
    """The answer, and the outline as the model wrote it. Greedy, so that a run tells the same as the last one."""
    seen: list[Event] = []
    strategy = Skeleton.model_validate({"max_points": 4, "point_tokens": 60, **params})
    sampling = Sampling(temperature=0.0)
    answer = await orch.ask(QUESTION, strategy=strategy, sampling=sampling, listeners=[seen.append])
    written = [event.text for event in seen if isinstance(event, GenerationDelta) and event.id == 1]
    return answer, "".join(written)


@pytest.mark.timeout(600)
async def test_a_small_model_writes_a_valid_outline(orch: Orchestrator) -> None:
    """Constrained, even a small model gives 3 to `max_points` short titles, and the answer has each of them."""
    answer, outline = await ask(orch)
    titles = json.loads(outline)["points"]
    assert 3 <= len(titles) <= 4
    assert all(len(title.split()) <= 6 for title in titles)
    assert answer.active
    assert all(f"**{point.title}**" in answer.text for point in parse_json_outline(outline, 4))
    assert answer.usage.parallelism > 1


@pytest.mark.timeout(600)
async def test_points_take_their_shared_prefix_from_the_cache(orch: Orchestrator) -> None:
    """All points but the first take nearly all of their prompt from the cache: it differs only at its end."""
    answer, _ = await ask(orch)
    points = sorted(answer.generations[1:], key=lambda record: record.cached)
    assert len(points) >= 2
    for record in points[1:]:
        assert record.cached >= record.prompt - 40


@pytest.mark.timeout(600)
async def test_a_small_model_writes_a_valid_graph(orch: Orchestrator) -> None:
    """With dependencies and difficulty, each point of the constrained outline has all of its fields."""
    answer, outline = await ask(orch, dependencies=True, difficulty=True)
    for item in json.loads(outline)["points"]:
        assert set(item) == {"title", "needs", "difficulty"}
        assert item["difficulty"] in ("easy", "hard")
        assert all(1 <= need <= 4 for need in item["needs"])
        assert len(item["needs"]) <= 3
    assert answer.text or answer.fell_back


@pytest.mark.timeout(600)
async def test_a_judge_scores_the_choices(orch: Orchestrator) -> None:
    """The prompt router gets probabilities for A, B and C, and takes the question somewhere."""
    answer, _ = await ask(orch, router="prompt", threshold=0.0)
    assert answer.generations[0].label in ("score", "judge")
    assert answer.text
