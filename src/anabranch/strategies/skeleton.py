"""Skeleton-of-Thought and the Skeleton Graph: an outline first, then all of its points at the same time.

The answer is written in order, from the first point on, while the others are still being decoded. What an outline
looks like is `outline`'s business, which questions suit is `router`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from anabranch.orchestrator.generation import Generation
from anabranch.orchestrator.policy import Policy
from anabranch.orchestrator.sampling import Constraint
from anabranch.orchestrator.taskgraph import Node, TaskGraph
from anabranch.strategies.base import Strategy
from anabranch.strategies.ordered import BETWEEN_PARTS, Part, write_in_order
from anabranch.strategies.outline import Point, drop_bad_needs, outline_schema, read_outline
from anabranch.strategies.router import unsuitable
from anabranch.strategies.sequential import Sequential

if TYPE_CHECKING:
    from anabranch.orchestrator.backend import Capabilities
    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run

OUTLINE_TOKENS = 512
"""Cap on the outline's completion tokens."""
ROOM_FOR_A_POINT = 40
"""Completion tokens below which a cap on the answer leaves a point too little for its 1 to 2 sentences."""


class Skeleton(Strategy):
    """An outline, then its points side by side; with `dependencies`, each as soon as the points that it needs are there.

    Source: Skeleton-of-Thought (arXiv 2307.15337); with `dependencies` and `difficulty`, Adaptive Skeleton Graph
    Decoding (arXiv 2402.12280). The published defaults: 3 to 10 points of 3 to 5 words, 1 to 2 sentences a point,
    temperature 0.7 where the caller sets none, 512 tokens a call, and a router that sends unsuitable questions to
    plain decoding.

    When to use: for answers that are lists (tips, reasons, effects, comparisons). Not for calculations, programs,
    letters, decisions; the router keeps these away. The paper's router is a large model or a trained classifier;
    the default here is a set of rules, because small models (0.1 to 1.5 billion parameters were tried) call nearly
    every question a list. `prompt` is for a capable judge.

    Needs: nothing that every backend cannot do. With `json_schema` the outline is constrained; with prefill, outline
    and points are begun for the model; without either, they are asked for.

    Cost: the outline and the prompt of each point come on top; the points share all of their prompt but its end.

    What it does when it cannot: with fewer than two points, or a cap that leaves no room for two, it falls back to
    plain decoding and says why. A point that fails is left out, with a warning, and so are those that need it; when
    all fail, the run does. Of a chat request it honours text alone: with tools, images, log-probabilities or a response
    format the proxy decodes plainly. The caller's cap is divided evenly among the points, and does not count their titles; a
    stop string of the caller's ends the answer at the point that wrote it.
    """

    name: ClassVar[str] = "skeleton"

    max_points: int = Field(default=10, ge=2, le=50, description="most points in the outline")
    point_tokens: int = Field(default=512, ge=1, description="most completion tokens of a point")
    temperature: float = Field(default=0.7, ge=0, le=2, description="used where the caller sets none")
    router: Literal["rules", "prompt", "off"] = Field(
        default="rules", description="what keeps unsuitable questions away: rules, the judge model, or nothing"
    )
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="how sure the judge must be that a question suits"
    )
    dependencies: bool = Field(default=False, description="points may build on earlier ones (Skeleton Graph)")
    difficulty: bool = Field(
        default=False, description="the draft model writes easy points (with dependencies)"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.difficulty and not self.dependencies:
            raise ValueError("difficulty goes with dependencies: set both")
        return self

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        if reason := await self._reason_against(run):
            return await _plainly(run, reason)
        outline = await self._outline(run)
        points = read_outline(outline.branch.text, self._most_points(run))
        if len(points) < 2:
            run.discard(outline, "no outline")
            return await _plainly(run, f"a skeleton needs two points, the outline has {len(points)}")
        run.propose("\n".join(map(str, points)))
        await self._expand(run, outline, points)

    async def _reason_against(self, run: Run) -> str | None:
        """Why plain decoding suits this question better, or None."""
        if run.question.segments:
            return "the answer has been begun already"
        if self._most_points(run) < 2:
            return f"a cap of {run.max_tokens} tokens leaves no room for two points"
        if self.router == "rules":
            return unsuitable(run.question.question, chains=self.dependencies)
        if self.router == "prompt":
            return await self._judges_reason(run)
        return None

    async def _judges_reason(self, run: Run) -> str | None:
        """A: points that stand for themselves, B: points that build on each other, C: no list."""
        asked = self.prompt("skeleton/route").apply(run.question, question=run.question.question)
        scores = await run.score(asked, ("A", "B", "C"))
        suits = scores["A"] + (scores["B"] if self.dependencies else 0.0)
        return None if suits >= self.threshold else f"the judge gives a skeleton {suits:.0%}"

    async def _outline(self, run: Run) -> Generation:
        capabilities = await run.capabilities()
        constrained = "json_schema" in capabilities.constraints
        unlinked = "skeleton/outline_json" if constrained else "skeleton/outline"
        prompt = self.prompt("skeleton/graph" if self.dependencies else unlinked)
        most = self._most_points(run)
        asked = prompt.apply(run.question, question=run.question.question, max_points=most)
        schema = outline_schema(most, dependencies=self.dependencies, difficulty=self.difficulty)
        return await run.generate(
            _begun_if(capabilities, asked),
            label="outline",
            max_tokens=OUTLINE_TOKENS,
            sampling=run.sampling.or_default(temperature=self.temperature),
            constraint=Constraint(kind="json_schema", source=schema) if constrained else None,
        )

    async def _expand(self, run: Run, outline: Generation, points: Sequence[Point]) -> None:
        """All points at once, each as soon as those that it needs are there; the answer in their order."""
        points, problems = drop_bad_needs(points)
        for problem in problems:
            run.warn(problem)
        begun: dict[str, asyncio.Future[Part]] = {_id(point.number): asyncio.Future() for point in points}

        async def write(node: Node[Point], earlier: Mapping[str, Generation]) -> Generation:
            part = await self._begin(run, outline, points, node, earlier)
            begun[node.id].set_result(part)
            return await part.live

        graph = TaskGraph.of(
            Node(id=_id(point.number), payload=point, needs=tuple(map(_id, point.needs))) for point in points
        )
        async with run.scope() as scope:
            execution = scope.spawn(run.execute, graph, write, policy=Policy.tolerate(at_least=1))
            if await write_in_order(run, begun, execution):
                await execution

    async def _begin(
        self,
        run: Run,
        outline: Generation,
        points: Sequence[Point],
        node: Node[Point],
        earlier: Mapping[str, Generation],
    ) -> Part:
        """Start a point. What it is about comes last, so that all points share the prompt before it."""
        point = node.payload
        role = "draft" if point.difficulty == "easy" else "target"
        capabilities = await run.capabilities(role)
        asked = self.prompt("skeleton/point").apply(
            run.question.after(outline, *earlier.values()),
            question=run.question.question,
            outline="\n".join(map(str, points)),
            earlier=[(points[need - 1], earlier[_id(need)].text.strip()) for need in point.needs],
            number=point.number,
            title=point.title,
        )
        # Where the turn has begun with this number, the next one would be the next point's.
        own = (BETWEEN_PARTS, f"\n{point.number + 1}.") if capabilities.prefill else ()
        live = run.generate(
            _begun_if(capabilities, asked),
            role=role,
            label=f"{point.number}. {point.title}",
            max_tokens=self._most_tokens(run, len(points)),
            stop=(*run.stop, *own)[: capabilities.max_stops],
            sampling=run.sampling.or_default(temperature=self.temperature),
        )
        return Part(header=asked.text, live=live)

    def _most_points(self, run: Run) -> int:
        if run.max_tokens is None:
            return self.max_points
        return min(self.max_points, run.max_tokens // ROOM_FOR_A_POINT)

    def _most_tokens(self, run: Run, points: int) -> int:
        if run.max_tokens is None:
            return self.point_tokens
        return min(self.point_tokens, run.max_tokens // points)


def _begun_if(capabilities: Capabilities, asked: Branch) -> Branch:
    """With the assistant's turn begun as the prompt says, where the backend can go on with it."""
    return asked if capabilities.prefill else asked.ask(asked.messages)


def _id(number: int) -> str:
    return f"point {number}"


async def _plainly(run: Run, reason: str) -> None:
    run.fall_back(reason)
    await Sequential()(run)
