"""Run: the execution of one request, and all that a strategy is handed.

`run.generate` is the heart: it starts a generation from a branch and gives it back live. Everything else is for
deciding what to start, what to stop, and what to write. A run talks to servers only through the scheduler.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from anabranch.orchestrator import events
from anabranch.orchestrator.answer import Figure
from anabranch.orchestrator.backend import Call, Capabilities, Measure
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.conduct import LiveAnswer
from anabranch.orchestrator.drive import Drive
from anabranch.orchestrator.errors import BudgetExhausted, Limit, UnknownName
from anabranch.orchestrator.execute import execute
from anabranch.orchestrator.execute import priority as priority_of_node
from anabranch.orchestrator.fanout import Settling, as_completed, fan_out
from anabranch.orchestrator.generation import Generation, LiveGeneration
from anabranch.orchestrator.measuring import measure
from anabranch.orchestrator.output import Output
from anabranch.orchestrator.policy import Outcome, Policy
from anabranch.orchestrator.records import REJECTED, RunRecords
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.orchestrator.scheduler import Load
from anabranch.orchestrator.scope import Scope
from anabranch.orchestrator.scoring import score
from anabranch.orchestrator.state import Role, RunState
from anabranch.orchestrator.taskgraph import Node, TaskGraph

if TYPE_CHECKING:
    from anabranch.orchestrator.strategy import Strategy

T = TypeVar("T")
R = TypeVar("R")
L = TypeVar("L", bound=Settling)

KNOWN_ROLES = ("target", "draft", "judge", "scorer", "embedder")
"""Roles that the target plays where no other model does."""
ALIKE = 32
"""Characters at the beginning of a conversation that siblings have in common."""


class Run:
    """What a strategy is given.

    Attributes:
        question: the branch to answer.
        sampling: how the caller wants tokens drawn.
        max_tokens: cap on the final answer's completion tokens, or None.
        stop: stop strings for the final answer.
    """

    def __init__(
        self,
        state: RunState,
        question: Branch,
        *,
        sampling: Sampling,
        max_tokens: int | None,
        stop: tuple[str, ...],
        output: Output,
        parent: Run | None = None,
    ) -> None:
        self.question, self.sampling, self.max_tokens, self.stop = question, sampling, max_tokens, stop
        self.state, self.output = state, output
        self.records = RunRecords(state.records)
        self.cut_short: Limit | None = None
        """The limit at which the strategy was ended."""
        self._parent = parent
        self._in_flight: set[LiveGeneration] = set()
        self._root: Scope | None = None

    # Generating

    def generate(
        self,
        branch: Branch,
        *,
        role: str = "target",
        label: str = "",
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        top_logprobs: int = 0,
        labels: Sequence[str] = (),
        measure: Measure | None = None,
        priority: float | None = None,
    ) -> LiveGeneration:
        """Start a generation from a branch; it begins at once and belongs to the innermost open scope.

        Args:
            role: which model: `target`, `draft`, `judge`, …; a role that is not set up is played by the target.
            label: what to call it in traces and pictures.
            stop: stop strings; the text is cut before the one that matched (`Generation.matched`).
            max_tokens: cap on its completion tokens.
            sampling: the run's own where left out. A seed is derived anew for each generation.
            labels, measure: write nothing, but score or measure; see `score`, `embed`, `reward`, `likelihood`.
            priority: what goes first when slots are short; higher is sooner.

        A call that the budget does not allow raises BudgetExhausted when it is awaited.
        """
        playing = self._role(role)
        live = self._new_live(branch, label or role, role)
        weight = priority_of_node.get() if priority is None else priority
        group = self._group(branch, role)
        call = partial(
            Call,
            rid=self.state.rid(live.id),
            branch=branch,
            model=playing.model,
            stop=tuple(stop),
            sampling=_seeded(self.sampling if sampling is None else sampling, live.id),
            constraint=constraint,
            top_logprobs=top_logprobs,
            labels=tuple(labels),
            measure=measure,
            priority=round(weight),
            affinity=self.state.run_id,
            group=group,
        )
        drive = Drive(self.state, playing, live, call, group=group, priority=weight, peers=self._in_flight)
        self._start(drive, max_tokens)
        return live

    def _new_live(self, branch: Branch, label: str, role: str) -> LiveGeneration:
        record = self.state.new_record(branch, label=label, role=role)
        run: Run | None = self
        while run is not None:
            run.records.numbers.append(record.id)
            run = run._parent
        return LiveGeneration(branch, record, self.state.records)

    def _group(self, branch: Branch, role: str) -> str:
        """Names the fork: siblings stand on the same generations, begin alike, and go to the same model."""
        begins = crc32(branch.messages[0].text[:ALIKE].encode(errors="replace")) if branch.messages else 0
        group = f"{self.state.run_id}:{role}:{begins:x}:{'.'.join(map(str, branch.parents))}"
        self.state.siblings[group] += 1
        return group

    def _start(self, drive: Drive, max_tokens: int | None) -> None:
        scope = self._scope()
        drive.announce()
        try:
            drive.cap(max_tokens, self.state.ledger.admit(drive.live.source, max_tokens))
        except BudgetExhausted as error:
            drive.begin(scope, partial(drive.refuse, error))
        else:
            drive.begin(scope, drive.run)

    def _scope(self) -> Scope:
        """The scope that what is started now belongs to."""
        scope = Scope.current(self) or self._root
        if scope is None:
            raise RuntimeError("a run can start something only while its strategy runs")
        return scope

    async def score(self, branch: Branch, labels: Sequence[str], *, role: str = "judge") -> dict[str, float]:
        """How likely each label is to come next, normalised over the labels: a judgement in one token.

        Where the backend cannot score labels, the model writes a few tokens and the label that they begin with
        gets all of the probability; when none does, all get the same.
        """
        return await score(self, branch, labels, role=role)

    async def embed(self, branch: Branch, *, role: str = "embedder") -> tuple[float, ...]:
        """The embedding of the text of a branch's last turn, on its own.

        Raises:
            UnsupportedCapability: the role's backend measures no embeddings.
        """
        return await measure(self, branch, "embedding", role=role)

    async def reward(self, branch: Branch, *, role: str = "scorer") -> float:
        """A reward model's value of the conversation as it stands, the assistant's turn so far included.

        On the model's own scale: many give logits, without bounds. Of several values, one for each step, the last.

        Raises:
            UnsupportedCapability: the role's backend measures no rewards.
        """
        return (await measure(self, branch, "reward", role=role))[-1]

    async def likelihood(self, branch: Branch, *, role: str = "target") -> tuple[float, ...]:
        """The log-probability of each token of a branch's last segment, given all that stands before it.

        Raises:
            UnsupportedCapability: the role's backend measures no likelihoods.
        """
        return await measure(self, branch, "likelihood", role=role)

    async def capabilities(self, role: str = "target") -> Capabilities:
        """What the backend behind a role can do."""
        return await self._role(role).lane.capabilities()

    def load(self, role: str = "target") -> Load:
        """How busy the backend behind a role is, with the calls of all runs of this process."""
        return self._role(role).lane.load

    def _role(self, role: str) -> Role:
        roles = self.state.roles
        if role not in roles and role not in KNOWN_ROLES:
            raise UnknownName("role", role, sorted({*roles, *KNOWN_ROLES}))
        return roles.get(role) or roles["target"]

    def has_role(self, role: str) -> bool:
        """Whether a model of its own plays this role."""
        return role in self.state.roles

    # Structure

    def scope(self) -> Scope:
        """A block: whatever is started inside and still runs when it is left is cancelled, on the server too."""
        return Scope(self)

    async def map(
        self,
        work: Callable[[T], Awaitable[R]],
        items: Iterable[T],
        policy: Policy | None = None,
    ) -> list[Outcome[R]]:
        """Do the same for each item, side by side; the outcomes come in the items' order.

        Raises:
            TooFewSucceeded: fewer succeeded than the policy wants.
            Exception: the first failure itself, where the policy tolerates none.
        """
        return await fan_out(self, work, items, policy or Policy.fail_fast())

    def as_completed(self, lives: Iterable[L]) -> AsyncIterator[L]:
        """Live generations or answers in the order in which they end; failed ones, too (`live.error`)."""
        return as_completed(lives)

    async def execute(
        self,
        graph: TaskGraph[T],
        work: Callable[[Node[T], Mapping[str, R]], Awaitable[R]],
        *,
        policy: Policy | None = None,
        arriving: AsyncIterable[Node[T]] | None = None,
    ) -> dict[str, Outcome[R]]:
        """Do each node's work the moment its own parents are done, with their results at hand.

        Args:
            work: gets a node and the results of the nodes that it needs.
            policy: what becomes of it when nodes fail; a failed node fails its dependants, with its reason.
            arriving: nodes that are still being planned; each is added to the graph as it comes.
        """
        return await execute(self, graph, work, policy or Policy.fail_fast(), arriving)

    # Writing the answer

    def emit(self, text: str) -> None:
        """Write a piece of the answer."""
        self.output.emit(text, "", self.state.now())

    def think(self, text: str) -> None:
        """Write a piece of the answer's reasoning."""
        self.output.emit("", text, self.state.now())

    async def relay(self, live: LiveGeneration) -> Generation:
        """Write into the answer what a generation writes, as it comes."""
        async for delta in live:
            if delta.reasoning:
                self.think(delta.reasoning)
            if delta.text:
                self.emit(delta.text)
        return await live

    def finish(self, generation: Generation) -> None:
        """Say that the answer ends as this generation ended (`length` where a cap cut it)."""
        self.output.finish(generation.finish_reason)

    def propose(self, text: str) -> None:
        """The best answer so far: it becomes the answer if the budget ends before anything was written."""
        self.output.proposal = text

    # Telling

    def discard(self, generation: Generation, reason: str = "not used") -> None:
        """Say that a generation's output is not used: its tokens are wasted, and those of what is built on it alone."""
        self.state.records.mark(generation.id, REJECTED)
        self.state.discard(generation.id, reason)

    def judged(
        self, generation: Generation, *, accepted: bool, by: str = "", score: float | None = None
    ) -> None:
        """Note a verdict on a generation, for the trace. It changes nothing: what is not used is to be discarded.

        Args:
            by: what judged.
            score: on the judge's own scale.
        """
        if self.state.listeners:
            self.state.publish(
                events.GenerationJudged(
                    t=self.state.now(), id=generation.id, accepted=accepted, by=by, score=score
                )
            )

    def report(self, **figures: Figure) -> None:
        """Figures of the strategy's own, by name, for `Answer.figures`: counts, rates, what was chosen and why."""
        self.output.figures.update(figures)

    def warn(self, message: str) -> None:
        """Tell the caller of something that went wrong without stopping the run."""
        run: Run | None = self
        while run is not None:
            if message not in run.output.warnings:
                run.output.warnings.append(message)
            run = run._parent
        if self.state.listeners:
            self.state.publish(events.Warned(t=self.state.now(), message=message))

    def fall_back(self, reason: str) -> None:
        """Say that the strategy could not apply, and why; the answer will be a plain one."""
        if self.output.fell_back is None:
            self.output.fell_back = reason
            if self.state.listeners:
                self.state.publish(events.FellBack(t=self.state.now(), reason=reason))

    # Composing

    def delegate(
        self,
        strategy: Strategy,
        branch: Branch | None = None,
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> LiveAnswer:
        """Have another strategy answer a branch, within this run's budget.

        Its generations count in this run's account; its answer is not written into this run's.

        Args:
            branch, sampling, max_tokens, stop: this run's own where left out.
        """
        run = Run(
            self.state,
            branch or self.question,
            sampling=sampling or self.sampling,
            max_tokens=max_tokens or self.max_tokens,
            stop=self.stop if stop is None else tuple(stop),
            output=Output(),
            parent=self,
        )
        live = LiveAnswer(run, strategy)
        live.attach(self._scope().spawn(live.conduct))
        return live

    @asynccontextmanager
    async def root(self) -> AsyncIterator[None]:
        """The scope of the whole run; the engine opens it around the strategy."""
        try:
            async with Scope(self) as self._root:
                yield
        finally:
            self._root = None


def _seeded(sampling: Sampling, generation: int) -> Sampling:
    """Another seed for each generation, the caller's own for the first, or all branches would say the same."""
    if sampling.seed is None or generation == 1:
        return sampling
    return replace(sampling, seed=(sampling.seed + 1_000_003 * (generation - 1)) & 0x7FFF_FFFF)
