"""How well the scheduler fills its slots: random task graphs, executed by the engine on a virtual clock.

Each graph goes through `Run.execute` with P slots and lengths that nobody knows beforehand. Its makespan is held against
the bound that no schedule can beat, max(span, work / P), and against a list scheduler that knows all lengths and takes
the longest remaining chain first. Beside it: first come first served, and the engine with rough guesses as weights.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from report import Report, finish, parser

from anabranch import Branch, Limits, Node, Orchestrator, Run, TaskGraph
from anabranch.orchestrator.backend import Call
from anabranch.testing import Reply, ScriptedBackend, run_virtual

SLOTS = (8, 32, 128)
MEDIAN_TOKENS, SIGMA = 100.0, 0.7
"""Lengths are lognormal: the mean is 28 % over the median, one in a hundred is five times the median or longer."""
GUESS_SIGMA = 0.5
"""Guesses are off by a lognormal factor: one in three by more than 1.65 either way."""

Plan = dict[str, tuple[str, ...]]
"""What each node needs; parents stand before their children."""
Lengths = Mapping[str, float]


def layered(nodes: int, chance: random.Random) -> Plan:
    """Layers of random width; each node needs one to three of the layer before."""
    plan: Plan = {}
    before: list[str] = []
    while len(plan) < nodes:
        width = min(chance.randint(10, 100), nodes - len(plan))
        layer = [str(len(plan) + index) for index in range(width)]
        plan |= {node: tuple(chance.sample(before, min(len(before), chance.randint(1, 3)))) for node in layer}
        before = layer
    return plan


def sparse(nodes: int, chance: random.Random) -> Plan:
    """Each node needs up to two of all before it."""
    plan: Plan = {"0": ()}
    for index in range(1, nodes):
        plan[str(index)] = tuple({str(chance.randrange(index)) for _ in range(chance.randint(0, 2))})
    return plan


def fork_join(nodes: int, chance: random.Random) -> Plan:
    """Twenty chains of forks that join again, as reasoning with threads makes them."""
    plan: Plan = {}
    heads: list[tuple[str, ...]] = [()] * 20
    while len(plan) < nodes:
        chain = chance.randrange(len(heads))
        width = min(chance.randint(2, 8), nodes - len(plan))
        threads = tuple(str(len(plan) + index) for index in range(width))
        plan |= dict.fromkeys(threads, heads[chain])
        heads[chain] = threads
        if len(plan) < nodes:
            join = str(len(plan))
            plan[join], heads[chain] = threads, (join,)
    return plan


SHAPES: dict[str, Callable[[int, random.Random], Plan]] = {
    "layered": layered,
    "sparse": sparse,
    "fork-join": fork_join,
}


class Execute:
    """Executes a plan; each node is one generation."""

    name = "execute"

    def __init__(self, plan: Plan, weights: Lengths | None) -> None:
        self._nodes = [
            Node(id=id, needs=needs, payload=None, weight=1.0 if weights is None else weights[id])
            for id, needs in plan.items()
        ]

    async def __call__(self, run: Run) -> None:
        """Answer nothing."""

        async def work(node: Node[None], inputs: Mapping[str, str]) -> str:
            return (await run.generate(Branch.of(node.id))).text

        await run.execute(TaskGraph.of(self._nodes), work)


def by_engine(plan: Plan, lengths: Lengths, slots: int, weights: Lengths | None = None) -> float:
    """The makespan of the real engine."""

    def reply(call: Call) -> Reply:
        return Reply(chunks=("x",), delay_s=lengths[call.branch.question])

    async def execute() -> float:
        backend = ScriptedBackend(reply, keep_calls=False)
        async with Orchestrator(backend, limits=Limits(start=slots, most=slots, first_token_s=1e9)) as orch:
            return (await orch.ask("plan", strategy=Execute(plan, weights))).timing.wall_s

    return run_virtual(execute())


def chains(plan: Plan, lengths: Lengths) -> dict[str, float]:
    """Length of the longest chain from each node on, itself included."""
    longest = {node: lengths[node] for node in plan}
    for node in reversed(plan):
        for need in plan[node]:
            longest[need] = max(longest[need], lengths[need] + longest[node])
    return longest


def by_list(plan: Plan, lengths: Lengths, slots: int, rank: Mapping[str, float] | None = None) -> float:
    """The makespan of a list scheduler: the highest rank first, or first come first served."""
    children: dict[str, list[str]] = {node: [] for node in plan}
    unmet = {node: len(needs) for node, needs in plan.items()}
    for node, needs in plan.items():
        for need in needs:
            children[need].append(node)
    ready: list[tuple[float, int, str]] = []
    running: list[tuple[float, str]] = []
    now, came = 0.0, 0

    def arrive(node: str) -> None:
        nonlocal came
        came += 1
        heapq.heappush(ready, (0.0 if rank is None else -rank[node], came, node))

    for node in plan:
        if not unmet[node]:
            arrive(node)
    while ready or running:
        while ready and len(running) < slots:
            node = heapq.heappop(ready)[-1]
            heapq.heappush(running, (now + lengths[node], node))
        now, ended = heapq.heappop(running)
        for child in children[ended]:
            unmet[child] -= 1
            if not unmet[child]:
                arrive(child)
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of one graph. `crowding` is work / P over span: 1 where neither alone bounds the makespan."""

    crowding: float
    over_bound: float
    over_known: float
    fifo_over_known: float
    guessed_over_known: float


def try_one(shape: str, nodes: int, slots: int, seed: int) -> Figures:
    """One random graph."""
    chance = random.Random(f"{shape} {slots} {seed}")
    plan = SHAPES[shape](nodes, chance)
    lengths = {node: MEDIAN_TOKENS * chance.lognormvariate(0.0, SIGMA) for node in plan}
    guesses = {node: length * chance.lognormvariate(0.0, GUESS_SIGMA) for node, length in lengths.items()}
    rank = chains(plan, lengths)
    span, share = max(rank.values()), sum(lengths.values()) / slots
    ours, known = by_engine(plan, lengths, slots), by_list(plan, lengths, slots, rank)
    return Figures(
        crowding=share / span,
        over_bound=ours / max(span, share),
        over_known=ours / known,
        fifo_over_known=by_list(plan, lengths, slots) / known,
        guessed_over_known=by_engine(plan, lengths, slots, guesses) / known,
    )


def measure(*, nodes: int = 1_000, graphs: int = 10) -> Report:
    """The whole table."""
    report = Report(
        title=f"Makespan of {graphs} random graphs a line, {nodes:,} nodes each, lognormal lengths (sigma {SIGMA})",
        columns=(
            "shape",
            "P",
            "work / P over span",
            "over bound: median",
            "over bound: worst",
            "over all-knowing: median",
            "over all-knowing: worst",
            "first come first served",
            "guesses as weights",
        ),
    )
    everything: list[Figures] = []
    for shape in SHAPES:
        for slots in SLOTS:
            found = [try_one(shape, nodes, slots, seed) for seed in range(graphs)]
            everything += found
            report.row(
                shape,
                slots,
                median(each.crowding for each in found),
                median(each.over_bound for each in found),
                max(each.over_bound for each in found),
                median(each.over_known for each in found),
                max(each.over_known for each in found),
                median(each.fifo_over_known for each in found),
                median(each.guessed_over_known for each in found),
            )
    report.target("median over max(span, work / P)", median(each.over_bound for each in everything), 1.10)
    report.target("median over the all-knowing scheduler", median(each.over_known for each in everything), 1.03)
    return report


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, default=1_000)
    options.add_argument("--graphs", type=int, default=10, help="for each shape and P")
    chosen = options.parse_args()
    finish([measure(nodes=chosen.nodes, graphs=chosen.graphs)], chosen)
