"""What lookahead gains, by its model of time and by simulation: a step of the target takes one second, one of the draft c.

The engine, the scheduler and the strategy are the real ones; the two models are scripted, on a virtual clock, and a
draft is right with probability a, independently. Beside each simulated speed-up stands the closed form
(`strategies/lookahead/timing.py`). Token-level speculation makes the target s times as fast.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import product

from lookahead_plot import draw
from report import Report, finish, parser

from anabranch import Answer, Limits, Orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.strategies.lookahead import Lookahead
from anabranch.strategies.lookahead.timing import speedup
from anabranch.testing import Reply, ScriptedBackend, run_virtual

STEP_TOKENS = 40
ACCEPTANCE, RATIOS, DEPTHS = (0.3, 0.5, 0.7, 0.9), (0.05, 0.1, 0.2, 0.4), (1, 2, 4, 8)
WITHIN = 0.03


@dataclass(kw_only=True)
class World:
    """A target and a draft, and how they go together.

    Attributes:
        steps: of the target's answer.
        acceptance: probability that a draft says what the target says.
        ratio: seconds of a draft's step; the target's takes `1 / token_level`.
    """

    steps: int
    acceptance: float
    ratio: float
    token_level: float = 1.0
    seed: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def target(self, call: Call) -> Reply:
        """Its own step, after whatever prefix."""
        return self._reply(call, right=True, seconds=1.0 / self.token_level)

    def draft(self, call: Call) -> Reply:
        """The same step, or another one."""
        return self._reply(call, right=self._random.random() < self.acceptance, seconds=self.ratio)

    def _reply(self, call: Call, *, right: bool, seconds: float) -> Reply:
        place = call.branch.text.count("\n\n")
        last = place >= self.steps - 1
        text = f"step {place}" if right else f"guess {self._random.random()}"
        return Reply(
            chunks=(text,), delay_s=seconds, tokens=STEP_TOKENS, matched=None if last and right else "\n\n"
        )


async def answer(world: World, strategy: Lookahead) -> Answer:
    """One answer of this world's."""
    target, draft = (
        ScriptedBackend(world.target, keep_calls=False),
        ScriptedBackend(world.draft, keep_calls=False),
    )
    limits = Limits(start=256, most=256)
    async with Orchestrator(target, roles={"draft": draft}, limits=limits) as orch:
        return await orch.ask("question", strategy=strategy)


def simulate(world: World, *, depth: int, in_step: bool = False) -> float:
    """The speed-up over the target alone without token-level speculation, whose every step takes a second."""
    strategy = Lookahead(depth=depth, verifier="exact", in_step=in_step)
    got = run_virtual(answer(world, strategy))
    expected = "\n\n".join(f"step {place}" for place in range(world.steps))
    if got.text != expected:
        raise AssertionError("the answer is not the target's")
    return world.steps / got.timing.wall_s


def grid(steps: int, *, in_step: bool = False) -> Report:
    """Simulation against the closed form."""
    form = "synchronous" if in_step else "asynchronous"
    report = Report(
        title=f"Speed-up of lookahead, {form}, {steps:,} steps: simulated / closed form",
        columns=("acceptance", "draft / target", *(f"depth {depth}" for depth in DEPTHS)),
    )
    worst = 0.0
    for acceptance, ratio in product(ACCEPTANCE, RATIOS):
        cells = []
        for depth in DEPTHS:
            simulated = simulate(
                World(steps=steps, acceptance=acceptance, ratio=ratio), depth=depth, in_step=in_step
            )
            expected = speedup(acceptance, ratio, depth, in_step=in_step)
            worst = max(worst, abs(simulated / expected - 1))
            cells.append(f"{simulated:.2f} / {expected:.2f}")
        report.row(acceptance, ratio, *cells)
    report.target(f"farthest from the closed form, {form}", worst, WITHIN)
    return report


def with_token_level(steps: int, *, acceptance: float, ratio: float, token_level: float) -> Report:
    """How step-level and token-level speculation multiply, by depth."""
    report = Report(
        title=f"Acceptance {acceptance}, draft / target {ratio}, token-level speculation {token_level} x",
        columns=("depth", "lookahead alone", "token-level alone", "both, simulated", "both, closed form"),
    )
    for depth in (0, *DEPTHS):
        alone = simulate(World(steps=steps, acceptance=acceptance, ratio=ratio), depth=depth)
        both = simulate(
            World(steps=steps, acceptance=acceptance, ratio=ratio, token_level=token_level), depth=depth
        )
        closed = token_level * speedup(acceptance, ratio * token_level, depth)
        report.row(depth, alone, token_level, both, closed)
    return report


def peaks() -> Report:
    """The greatest speed-up that any depth gives, and the depth that is within 2 % of it, by the closed form."""
    report = Report(
        title="Peak speed-up (at depth), asynchronous / synchronous",
        columns=("draft / target", *(f"acceptance {acceptance}" for acceptance in ACCEPTANCE)),
    )
    for ratio in RATIOS:
        cells = [f"{_peak(a, ratio, in_step=False)} / {_peak(a, ratio, in_step=True)}" for a in ACCEPTANCE]
        report.row(ratio, *cells)
    return report


def _peak(acceptance: float, ratio: float, *, in_step: bool) -> str:
    gains = [speedup(acceptance, ratio, depth, in_step=in_step) for depth in range(33)]
    depth = next(depth for depth, gain in enumerate(gains) if gain >= max(gains) / 1.02)
    return f"{max(gains):.2f} ({depth})"


def pays() -> Report:
    """From which acceptance rate on the best depth gains a tenth, by the closed form."""
    report = Report(
        title="Least acceptance rate at which some depth up to 16 gains 10 %",
        columns=("draft / target", "asynchronous", "synchronous"),
    )
    for ratio in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
        report.row(ratio, *(_least(ratio, in_step=in_step) for in_step in (False, True)))
    return report


def _least(ratio: float, *, in_step: bool) -> float:
    for percent in range(100):
        if max(speedup(percent / 100, ratio, depth, in_step=in_step) for depth in range(17)) >= 1.1:
            return percent / 100
    return math.nan


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=4000, help="steps of each simulated answer")
    options.add_argument("--plot", metavar="SVG", help="write the picture too")
    chosen = options.parse_args()
    if chosen.plot:
        draw(chosen.plot)
    finish(
        [
            grid(chosen.steps),
            grid(chosen.steps, in_step=True),
            with_token_level(chosen.steps, acceptance=0.43, ratio=0.12, token_level=1.4),
            peaks(),
            pays(),
        ],
        chosen,
    )
