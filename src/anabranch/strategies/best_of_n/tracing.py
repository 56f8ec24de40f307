"""Tracing: runs the traces of best-of-N as its rules want them. The rules decide; this starts, listens, stops and tells.

Invariant: when `answer` returns or raises, no trace runs any more.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anabranch.answers import Equivalence, Keys
from anabranch.orchestrator.backend import Delta
from anabranch.orchestrator.errors import AnabranchError, BudgetExhausted, MissingExtra, TooFewSucceeded
from anabranch.orchestrator.generation import Generation, LiveGeneration
from anabranch.orchestrator.sampling import Sampling
from anabranch.orchestrator.scope import Scope
from anabranch.strategies.best_of_n.confidence import TOP, Window, token_confidence
from anabranch.strategies.best_of_n.rules import MissingMeasure, Selected, Trace
from anabranch.strategies.best_of_n.selection import MajorityVote
from anabranch.strategies.logits import sigmoid

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run
    from anabranch.strategies.best_of_n.strategy import BestOfN

LOOK_EVERY = 16
"""Pieces of a trace's text between two looks at it."""


@dataclass(slots=True, kw_only=True)
class Running:
    """A trace that is being written."""

    number: int
    live: LiveGeneration
    window: Window
    thought: str = ""
    confidences: list[float] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Some more of it."""
        self.thought += delta.reasoning
        for token in delta.logprobs:
            if top := [logprob for _, logprob in token.top if math.isfinite(logprob)]:
                self.confidences.append(token_confidence(top))
                self.window.add(self.confidences[-1])

    def seen(self) -> Trace:
        """As the pruning rules see it, its reasoning included."""
        text = self.thought + self.live.text
        return Trace(number=self.number, text=text, tokens=self.live.tokens, complete=False)


class Tracing:
    """One request's traces."""

    def __init__(self, strategy: BestOfN, run: Run) -> None:
        self._strategy, self._run = strategy, run
        self._stopping, self._selection = strategy.stopping(), strategy.selection()
        self._pruning, self._sure = strategy.pruning(), strategy.low_confidence()
        self._least: float | None = None
        """The threshold of confidence; None while there is none."""
        self._running: dict[int, Running] = {}
        self._ended: list[Trace] = []
        self._written: dict[int, Generation] = {}
        self._failures: list[AnabranchError] = []
        self._pruned: set[int] = set()
        self._asked = 0
        self._moved = asyncio.Event()
        self._logprobs = 0
        self._keys: Keys

    async def answer(self) -> None:
        """Run the traces, take one answer, write it. Raises TooFewSucceeded when all have failed."""
        self._logprobs = await self._available_logprobs()
        equivalence = self._equivalence() if self._strategy.answers == "math" else None
        self._keys = Keys(self._strategy.answers, equivalence)
        try:
            async with self._run.scope() as scope:
                await self._trace_all(scope)
        finally:
            if equivalence is not None:
                equivalence.close()
            self._report()
        self._write()

    def _equivalence(self) -> Equivalence | None:
        try:
            return Equivalence()
        except MissingExtra as error:
            self._run.warn(f"answers are the same only where their text or their value is: {error}")
            return None

    async def _trace_all(self, scope: Scope) -> None:
        """Start as many as the stopping rule wants; go on until it has enough, or no more are to come."""
        while (wanted := self._stopping.wanted(self._ended)) > len(self._ended):
            while self._asked < wanted:
                scope.spawn(self._trace, self._asked)
                self._asked += 1
            self._moved.clear()
            await self._moved.wait()

    async def _trace(self, number: int) -> None:
        """One trace, from its start to its place among those that have ended."""
        run = self._run
        live = run.generate(
            run.question,
            label=f"trace {number + 1}",
            max_tokens=run.max_tokens,
            stop=run.stop,
            sampling=self._sampling(),
            top_logprobs=self._logprobs,
        )
        window = Window(self._strategy.window)
        running = self._running[number] = Running(number=number, live=live, window=window)
        try:
            await self._listen(running)
            generation = await live
            del self._running[number]
            await self._end(number, generation, tuple(running.confidences))
        except BudgetExhausted:
            raise  # the engine answers with what was proposed
        except AnabranchError as error:
            run.warn(f"trace {number + 1} failed: {error}")
            self._failures.append(error)
            self._settle(Trace(number=number, complete=False))

    async def _listen(self, running: Running) -> None:
        """Follow a trace; have a look at it now and then."""
        pieces = 0
        async for delta in running.live:
            running.add(delta)
            pieces += 1
            if pieces % LOOK_EVERY == 0:
                self._prune()

    def _prune(self) -> None:
        """Stop what is not worth going on with, on the server too."""
        seen = [running.seen() for running in self._running.values()]
        for number in self._pruning.pruned(seen, self._ended) | self._unsure():
            if not (live := self._running[number].live).done:
                self._pruned.add(number)
                live.cancel()

    def _unsure(self) -> frozenset[int]:
        """Those that `LowConfidence` would prune, from sums that are kept up token by token."""
        least = self._least
        if least is None:
            return frozenset()
        return frozenset(
            running.number
            for running in self._running.values()
            if running.window.full and running.window.lowest < least
        )

    async def _end(self, number: int, generation: Generation, confidences: tuple[float, ...]) -> None:
        """A trace has ended: read its answer, have it valued, count it."""
        pruned = number in self._pruned
        complete = generation.complete and not pruned
        answer = await self._keys.of(generation.text) if complete else None
        score = await self._score(generation) if complete and self._strategy.scored else None
        self._written[number] = generation
        self._settle(
            Trace(
                number=number,
                text=generation.text,
                answer=answer,
                tokens=generation.usage.completion,
                complete=complete,
                confidences=confidences,
                score=score,
            )
        )

    async def _score(self, generation: Generation) -> float | None:
        try:
            reward = await self._run.reward(generation.branch)
            return sigmoid(reward) if self._strategy.vote == "score" else reward
        except BudgetExhausted:
            raise
        except AnabranchError as error:
            self._run.warn(f"a trace could not be scored: {error}")
            return None

    def _settle(self, trace: Trace) -> None:
        self._running.pop(trace.number, None)
        self._ended.append(trace)
        if (best := self._select()) is not None:
            self._run.propose(self._written[best.number].text)
        if self._sure is not None and self._logprobs and self._least is None:
            self._least = self._threshold()
        self._prune()
        self._moved.set()

    def _threshold(self) -> float | None:
        assert self._sure is not None
        try:
            return self._sure.threshold(self._ended)
        except MissingMeasure as error:
            self._run.warn(f"nothing is pruned by confidence: {error}")
            return None

    def _select(self) -> Selected | None:
        """What the selection rule takes; else the longest of those that did not come to their end."""
        there = [trace for trace in self._ended if trace.number in self._written]
        try:
            selected = self._selection.select(there)
        except MissingMeasure:
            selected = MajorityVote().select(there)
        if selected is None and there:
            selected = Selected(number=max(there, key=lambda each: each.tokens).number)
        return selected

    def _write(self) -> None:
        """The answer, and what became of the traces."""
        selected = self._select()
        if selected is None:
            raise TooFewSucceeded(0, 1, self._failures)
        self._warn(selected)
        chosen = self._written[selected.number]
        if chosen.reasoning:
            self._run.think(chosen.reasoning)
        self._run.emit(chosen.text)
        self._run.finish(chosen)

    def _warn(self, selected: Selected) -> None:
        if selected.answer is None and not self._strategy.scored:
            self._run.warn(f"no trace of {len(self._ended)} has an answer that can be read: none was voted for")
        try:
            self._selection.select(self._ended)
        except MissingMeasure as error:
            self._run.warn(f"all votes count alike: {error}")

    def _report(self) -> None:
        """What became of the traces; also where the budget ended them."""
        selected = self._select() or Selected(number=0)
        fates = Counter(self._fate(trace) for trace in self._ended)
        names = ("voted", "no answer", "cut short", "pruned", "failed")
        self._run.report(
            traces={"asked": self._asked, **{name: fates[name] for name in names}},
            answer=selected.answer,
            shares={answer[:80]: round(share, 4) for answer, share in list(selected.shares.items())[:8]},
            confidences="streamed log-probabilities" if self._logprobs else None,
        )

    def _fate(self, trace: Trace) -> str:
        if trace.number not in self._written:
            return "failed"
        if trace.number in self._pruned:
            return "pruned"
        if not trace.complete:
            return "cut short"
        return "no answer" if trace.answer is None else "voted"

    async def _available_logprobs(self) -> int:
        """How many candidates to ask for in the place of each token: 0 where none are wanted, or none are to be had."""
        if not self._strategy.confident:
            return 0
        most = (await self._run.capabilities()).top_logprobs
        if not most:
            self._run.warn("the server gives no log-probabilities: nothing is pruned or weighed by confidence")
        return min(most, TOP)

    def _sampling(self) -> Sampling:
        """The run's own, but never greedy: all traces would be one."""
        sampling = self._run.sampling
        if sampling.temperature == 0:
            self._run.warn(
                f"temperature 0 gives one trace many times: sampled at {self._strategy.temperature} instead"
            )
        if not sampling.temperature:
            return replace(sampling, temperature=self._strategy.temperature)
        return sampling
