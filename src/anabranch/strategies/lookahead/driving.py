"""Driving: does what the tree asks for, tells it what came of it, and writes what it commits.

One coroutine for each thing that is under way, in a scope of its own: dropping a node cancels them, and with them their
calls on the servers. Nothing polls; all news comes through one queue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.accounting import span_of
from anabranch.orchestrator.errors import AnabranchError, BudgetExhausted
from anabranch.strategies.lookahead.steps import Step, step_of
from anabranch.strategies.lookahead.tally import Fate, Tally
from anabranch.strategies.lookahead.timing import DepthRule
from anabranch.strategies.lookahead.tree import Commit, Draft, Drop, Judge, Move, Target, Tree
from anabranch.strategies.lookahead.verifiers import Exact, exact

if TYPE_CHECKING:
    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run
    from anabranch.orchestrator.scope import Scope
    from anabranch.strategies.lookahead.strategy import Lookahead

LEAST_VERDICTS = 8
"""Verdicts to be seen before speculation is given up as not worth its cost."""
FIRST_DEPTH = 2
"""Of `depth="auto"`, until there is something to see."""

DRAFTING = ("draft", "middle")
"""Roles that write drafts."""

_CUT = ("budget", "deadline", "cancelled")


class Driving:
    """One answer's speculation.

    Attributes:
        tokens: completion tokens of the answer so far.
    """

    def __init__(self, strategy: Lookahead, run: Run) -> None:
        self._strategy, self._run = strategy, run
        self._verifier, self._drafter = strategy.verifier_for(), strategy.drafter_for(run)
        self._adapts = strategy.depth == "auto"
        self._rule = DepthRule(most=strategy.most_depth)
        depth = min(FIRST_DEPTH, strategy.most_depth) if strategy.depth == "auto" else strategy.depth
        self._tree = Tree(
            depth=depth, width=strategy.width, compare=self._verifier.compares, in_step=strategy.in_step
        )
        self._branches = {self._tree.root: run.question}
        self._place = run.question
        self._tasks: defaultdict[int, list[asyncio.Task[None]]] = defaultdict(list)
        self._drafts: dict[int, Step] = {}
        self._news: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._tally = Tally()
        self._last, self._repeats = "", 1
        self._writing = 0
        """Calls of the target that are under way."""
        self._over = False
        self._plainly = False
        self.tokens = 0

    async def speculate(self) -> Branch | None:
        """Write the answer; gives the place from which to go on plainly, where speculation ends before the answer."""
        async with self._run.scope() as scope:
            self._do(scope, self._tree.moves())
            while not self._over:
                (await self._news.get())()
                self._do(scope, self._tree.moves())
            # What no verdict has reached is not used.
            for node in list(self._drafts):
                self._discard(node, "discarded")
        return self._place if self._plainly else None

    def report(self) -> None:
        """Put into the answer what became of the drafts."""
        run = self._run
        for record in run.records:
            if record.role in DRAFTING and record.finish_reason in _CUT and record.completion:
                self._tally.stopped(record.completion)
        target_span = span_of(run.records, role="target")
        run.report(**self._tally.figures(), depth=self._tree.depth, target_span=target_span)

    # What the tree asks for

    def _do(self, scope: Scope, moves: list[Move]) -> None:
        for move in moves:
            if isinstance(move, Commit):
                self._commit(move)
            elif isinstance(move, Drop):
                self._drop(move)
            elif not self._over:
                self._tasks[move.node].append(scope.start(self._work(move)))

    def _work(self, move: Draft | Target | Judge) -> Coroutine[Any, Any, None]:
        if isinstance(move, Draft):
            return self._draft(move)
        return self._target(move) if isinstance(move, Target) else self._judge(move)

    async def _draft(self, move: Draft) -> None:
        began = self._now()
        try:
            async with self._run.scope():
                step = await self._drafter.step(self._run, self._branches[move.parent], f"draft {move.node}")
        except BudgetExhausted:
            raise
        except AnabranchError as error:
            self._hear(self._give_up, f"the draft failed ({error})")
        else:
            self._hear(self._drafted, move.node, step, self._now() - began)

    async def _target(self, move: Target) -> None:
        began = self._now()
        async with self._run.scope():
            live = self._run.generate(
                self._branches[move.node],
                label=f"step {move.node}",
                stop=(self._strategy.boundary, *self._run.stop),
                max_tokens=self._step_cap(),
            )
            self._writing += 1
            try:
                generation = await live
            finally:
                self._writing -= 1
        self._tally.speculated(generation.spec)
        step = step_of(generation, self._strategy.boundary)
        self._hear(self._written, move.node, step, self._now() - began)

    async def _judge(self, move: Judge) -> None:
        verdict, by = exact(move.draft, move.own), Exact.name
        if verdict is None:
            by = self._verifier.name
            try:
                async with self._run.scope():
                    verdict = await self._verifier.judge(self._run, move.draft, move.own)
            except BudgetExhausted:
                raise
            except AnabranchError as error:
                self._hear(self._without_judge, move.node, error)
                return
        if (drafted := move.draft.generation) is not None:
            self._run.judged(drafted, accepted=verdict.accepted, by=by, score=verdict.score)
        self._hear(self._judged, move.node, verdict.accepted)

    def _drop(self, move: Drop) -> None:
        for task in self._tasks.pop(move.node, ()):
            task.cancel()
        if move.rejected:
            self._rule.saw_verdict(accepted=False)
        self._discard(move.node, "rejected" if move.rejected else "discarded")
        self._branches.pop(move.node, None)

    def _commit(self, move: Commit) -> None:
        step, cap = move.step, self._run.max_tokens
        if self._over:
            return
        if cap is not None and move.by == "draft" and self.tokens + step.tokens > cap:
            self._finish_plainly()
            return
        if move.by == "draft":
            self._tally.draft(self._drafts.pop(move.node, step), "accepted")
        else:
            self._tally.own(step)
        self._branches[move.node] = self._place = step.branch
        self.tokens += step.tokens
        self._write(step)
        self._look_for_end(step)

    # What came of it

    def _hear(self, told: Callable[..., None], *about: object) -> None:
        self._news.put_nowait(partial(told, *about))

    def _drafted(self, node: int, step: Step | None, seconds: float) -> None:
        self._rule.saw_step("draft", seconds)
        if step is not None:
            self._drafts[node] = step
        if not self._tree.knows(node):
            self._discard(node, "discarded")
            return
        if step is not None:
            self._branches[node] = step.branch
        self._tree.drafted(node, step)

    def _written(self, node: int, step: Step, seconds: float) -> None:
        self._rule.saw_step("target", seconds)
        self._tree.written(node, step)

    def _judged(self, node: int, accepted: bool) -> None:
        if accepted:
            self._rule.saw_verdict(accepted=True)
        self._tree.judged(node, accepted=accepted)

    def _without_judge(self, node: int, error: AnabranchError) -> None:
        if self._verifier.compares:
            self._run.warn(f"the judge failed ({error}): only exact matches are accepted")
            self._verifier = Exact()
            self._tree.judged(node, accepted=False)
        else:
            self._give_up(f"the verifier failed ({error})")

    def _give_up(self, reason: str) -> None:
        if not self._over:
            self._run.warn(f"{reason}: the target goes on plainly")
            self._finish_plainly()

    # The answer

    def _write(self, step: Step) -> None:
        generation = step.generation
        if generation is None:
            self._run.emit(step.text + self._strategy.boundary)
            return
        self._run.think(generation.reasoning)
        at_boundary = generation.matched == self._strategy.boundary
        thinking = at_boundary and generation.reasoning and not generation.text
        (self._run.think if thinking else self._run.emit)(generation.tail if thinking else generation.text)
        if at_boundary and not thinking:
            self._run.emit(generation.tail or self._strategy.boundary)

    def _look_for_end(self, step: Step) -> None:
        """Whether the answer, or speculation, ends with this step."""
        generation, cap = step.generation, self._run.max_tokens
        self._repeats = self._repeats + 1 if step.same_as(self._last) else 1
        self._last = step.text
        if step.final or (generation is not None and generation.finish_reason in _CUT):
            self._over = True
            if generation is not None:
                self._run.finish(generation)
        elif cap is not None and self.tokens >= cap:
            self._over = True
            self._run.output.finish("length")
        elif self._repeats >= self._strategy.most_repeats:
            self._over = True
            self._run.warn(f"the same step came {self._repeats} times: the answer ends there")
            self._run.output.finish("length")
        elif self._strategy.speculate == "reasoning" and step.closes_reasoning:
            self._finish_plainly()
        elif self._adapts:
            self._adapt()

    def _adapt(self) -> None:
        """Draft as far ahead as pays; where nothing does, no more."""
        self._tree.depth = self._rule.depth(self._load())
        if self._tree.depth == 0:
            if self._rule.verdicts >= LEAST_VERDICTS:
                self._give_up(
                    f"speculation does not pay: {self._rule.rate:.0%} of the drafts are accepted, "
                    f"and a draft takes {self._rule.measured_ratio:.2f} of the target's time"
                )
            else:
                self._tree.depth = 1

    def _finish_plainly(self) -> None:
        self._over = self._plainly = True

    def _discard(self, node: int, fate: Fate) -> None:
        if (step := self._drafts.pop(node, None)) is None:
            return
        self._tally.draft(step, fate)
        if step.generation is not None:
            self._run.discard(step.generation, fate)

    def _step_cap(self) -> int:
        cap = self._run.max_tokens
        return (
            self._strategy.step_tokens
            if cap is None
            else max(1, min(self._strategy.step_tokens, cap - self.tokens))
        )

    def _load(self) -> float:
        """How busy others keep the target, 0 to 1."""
        load = self._run.load("target")
        return min(1.0, max(0.0, load.share - self._writing / load.slots))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
