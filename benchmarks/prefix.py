"""How much of the prompts is computed more than once: prompt tokens computed over the least possible, cold cache.

The least possible is each distinct prefix once: the size of the prefix tree over the token ids of all prompts. What is
computed is what the server says, prompt minus cached, summed over the branches. Beside it stand what would be computed
without any sharing, and what the same llama.cpp computes when it is simply sent all prompts at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from report import Report, finish, parser
from servers import Ids, cold, computed_without_us, scheme

from anabranch import Answer, Branch, Generation, Orchestrator, Run, Sampling

GREEDY = Sampling(temperature=0.0)
BRANCHES = {"local": 8, "sglang": 16}
"""By scheme; the embedded engine has eight slots."""
TOKENS, FIRST_TOKENS = 8, 60
"""Completion tokens of a branch, and of the generation that some of them continue."""
SENTENCES = (
    "Rivers carry water and sand from the mountains to the sea, and build deltas where they slow down.",
    "A lake that a river leaves behind when it takes a shorter way is called an oxbow lake.",
    "An anabranch leaves the main river, runs beside it for a while, and joins it again downstream.",
    "Braided rivers have many shallow channels that part and meet again between banks of gravel.",
)
QUESTION = "Explain these notes, point by point. " + " ".join(
    f"{n}. {s}" for n, s in enumerate(SENTENCES * 6, 1)
)
OTHER = "Sort these: " + " ".join(f"item {number * 7919 % 1000}," for number in range(80))
HEAD_START_S = 0.5


@dataclass(kw_only=True)
class Tree:
    """A strategy that asks for many branches with common prefixes; keeps what it asked, and what it had generated."""

    width: int
    asked: list[Branch] = field(default_factory=list)
    generated: list[Generation] = field(default_factory=list)
    name: str = "tree"

    async def __call__(self, run: Run) -> None:
        """Answer nothing."""
        branches = await self.branches(run)
        self.asked += branches
        lives = [run.generate(branch, max_tokens=TOKENS, sampling=GREEDY) for branch in branches]
        async for live in run.as_completed(lives):
            await live

    async def branches(self, run: Run) -> list[Branch]:
        """One long prefix, and an end of its own for each branch."""
        return [run.question.say(f"Point {index + 1}:") for index in range(self.width)]


class Continued(Tree):
    """The branches continue what the model has just written."""

    async def branches(self, run: Run) -> list[Branch]:
        """Write something, then fork."""
        self.asked.append(run.question)
        first = await run.generate(run.question, max_tokens=FIRST_TOKENS, sampling=GREEDY)
        self.generated.append(first)
        return [first.branch.say(f"\n\nPoint {index + 1}:") for index in range(self.width)]


class Forked(Tree):
    """A prefix that forks in four, each of which forks again; all branches are asked for at once."""

    async def branches(self, run: Run) -> list[Branch]:
        """Four prefixes in one."""
        inner = [run.question.say(f"Part {index + 1}. {SENTENCES[index] * 4}") for index in range(4)]
        return [inner[index % 4].say(f" Point {index + 1}:") for index in range(self.width)]


class Late(Tree):
    """One fork, asked for while the server computes the prompt of an earlier call: the branches wait there together."""

    async def branches(self, run: Run) -> list[Branch]:
        """Keep the server busy, then fork."""
        busy = Branch.of(OTHER)
        self.asked.append(busy)
        run.generate(busy, max_tokens=1, sampling=GREEDY)
        await asyncio.sleep(HEAD_START_S)
        return await super().branches(run)


SHAPES: dict[str, type[Tree]] = {
    "one fork": Tree,
    "one fork, busy server": Late,
    "fork after a generation": Continued,
    "fork of forks": Forked,
}


def distinct(prompts: Iterable[Ids]) -> int:
    """Tokens of the prefix tree over these prompts: each distinct prefix counts once."""
    total, before = 0, Ids()
    for prompt in sorted(prompts):
        shared = 0
        while shared < min(len(prompt), len(before)) and prompt[shared] == before[shared]:
            shared += 1
        total += len(prompt) - shared
        before = prompt
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Prompt tokens of one cold run. `alone`: what the server computes without the engine, where that was tried."""

    sent: int
    least: int
    computed: int
    alone: float
    wall_s: float


async def try_one(url: str, shape: str, branches: int, *, also_alone: bool = False) -> Figures:
    """One run on a cold server; with `also_alone` also what an embedded server does without the engine."""
    tree = SHAPES[shape](width=branches)
    async with cold(url) as server, Orchestrator(server.backend) as orch:
        answer: Answer = await orch.ask(QUESTION, strategy=tree)
        prompts = [await server.ids(branch) for branch in tree.asked]
    # What the model wrote lies in the cache, all but its last token: it is no prompt token that must be computed.
    written = [prompts[0] + generation.token_ids[:-1] for generation in tree.generated]
    free = sum(len(generation.token_ids) - 1 for generation in tree.generated)
    usage = answer.usage
    alone = math.nan
    if also_alone and scheme(url) == "local" and not tree.generated:
        alone = float(await computed_without_us(url, prompts, TOKENS))
    return Figures(
        sent=usage.prompt,
        least=distinct([*prompts, *written]) - free,
        computed=usage.prompt - usage.cached,
        alone=alone,
        wall_s=answer.timing.wall_s,
    )


async def measure(urls: Iterable[str], branches: int | None = None, repeats: int = 3) -> Report:
    """The whole table: the worst of some cold runs for each server and shape."""
    report = Report(
        title=f"Prompt tokens, cold cache, {TOKENS} completion tokens a branch",
        columns=(
            "backend",
            "shape",
            "branches",
            "sent",
            "least possible",
            "computed",
            "computed / least",
            "no sharing / least",
            "server alone / least",
            "wall s",
        ),
        numbers_from=2,
    )
    for url in urls:
        kind = scheme(url)
        width = branches or BRANCHES.get(kind, 8)
        for shape in SHAPES:
            runs = [await try_one(url, shape, width, also_alone=index == 0) for index in range(repeats)]
            worst = max(runs, key=lambda each: each.computed / each.least)
            least = worst.least
            ratio = worst.computed / least
            report.row(
                kind,
                shape,
                width,
                worst.sent,
                least,
                worst.computed,
                ratio,
                worst.sent / least,
                runs[0].alone / runs[0].least,
                worst.wall_s,
            )
            report.target(f"computed over least possible, {kind}, {shape}", ratio, 1.05)
    return report


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument(
        "--backend", action="append", metavar="URL", help="local: or sglang://HOST:PORT; repeatable"
    )
    options.add_argument("--branches", type=int, help="8 on local:, 16 on sglang:// where left out")
    options.add_argument("--repeats", type=int, default=3, help="the worst of so many is shown")
    chosen = options.parse_args()
    finish([asyncio.run(measure(chosen.backend or ["local:"], chosen.branches, chosen.repeats))], chosen)
