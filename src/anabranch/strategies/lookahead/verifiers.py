"""Verifiers: is a drafted step what the target would say, or good enough to stand in its place?

Every verdict begins with a check that costs nothing: a draft that says the same as the target's own step, but for white
space and case, is accepted. What follows differs in cost and risk; each says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from anabranch.orchestrator.branch import Branch
from anabranch.strategies.logits import sigmoid
from anabranch.strategies.lookahead.steps import Step, numbers

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run
    from anabranch.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says. `score` is on the verifier's own scale; None for an exact match."""

    accepted: bool
    score: float | None = None


class Verifier(Protocol):
    """Judges a draft.

    Attributes:
        name: what it is called in traces.
        compares: it needs the target's own step at the same place.
    """

    name: ClassVar[str]
    compares: ClassVar[bool]

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """The verdict on a draft. Raises AnabranchError where it cannot be had."""
        ...


def exact(draft: Step, own: Step | None) -> Verdict | None:
    """The check that costs nothing; None where it decides nothing."""
    return Verdict(accepted=True) if own is not None and draft.same_as(own.text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Nothing but an exact match.

    Cost: nothing. Risk: none: the answer is, word for word, the target's; few steps are accepted unless the draft
    decodes greedily and is close to the target.
    """

    name: ClassVar[str] = "exact"
    compares: ClassVar[bool] = True

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Compare."""
        return Verdict(accepted=False, score=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The two steps have the same numbers in the same order, and at least one.

    Cost: nothing. Risk: the words between the numbers are not read; a right step that also says where a number comes
    from is rejected. Not a published verifier. On recorded solutions it is the most reliable of those that need no model
    (`docs/lookahead.md`).
    """

    name: ClassVar[str] = "numbers"
    compares: ClassVar[bool] = True

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Compare."""
        assert own is not None
        found = numbers(draft.text)
        return Verdict(accepted=bool(found) and found == numbers(own.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """A judge model says whether two steps mean the same and calculate the same (Lookahead Reasoning, section 3.2).

    Cost: one call of the role `judge` with a prompt of two steps; one token, or none where the server scores labels.
    Risk: a weak judge takes a wrong number for the right one. The threshold is the least probability of "yes".
    """

    prompt: Prompt
    threshold: float = 0.5
    name: ClassVar[str] = "same"
    compares: ClassVar[bool] = True

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Ask."""
        assert own is not None
        asked = self.prompt.apply(_behind(run.question, draft, own), first=own.text, second=draft.text)
        scores = await run.score(asked, ("yes", "no"), role="judge")
        return Verdict(accepted=scores["yes"] >= self.threshold, score=scores["yes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """The target rates the draft from 0 to 9, behind the reasoning so far (SpecReason, arXiv 2504.07891; SSR).

    Cost: the target reads the draft, whose tokens it needs anyway, and the prompt; one token. The target writes a
    step of its own only where the rating is too low. Risk: the answer is no longer the target's: it is as good as
    the target's ratings. `expected` takes the mean over the digits by their probability, else the likeliest one counts.
    """

    prompt: Prompt
    threshold: float = 7.0
    expected: bool = False
    role: str = "target"
    name: ClassVar[str] = "rating"
    compares: ClassVar[bool] = False

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Ask."""
        digits = [str(digit) for digit in range(10)]
        question, answer = self.prompt.render(step=draft.text)
        asked = draft.branch.user(question.text).say(answer.text)
        scores = await run.score(asked, digits, role=self.role)
        likeliest = float(max(digits, key=lambda digit: scores[digit]))
        score = sum(int(digit) * scores[digit] for digit in digits) if self.expected else likeliest
        return Verdict(accepted=score >= self.threshold, score=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The embeddings of the two steps point the same way (Lookahead Reasoning's second verifier, cosine above 0.95).

    Cost: two short calls of the role `embedder`, which may be a very small model. Risk: an embedding is about what a text
    is about; a step with another number in it has nearly the same.
    """

    threshold: float = 0.95
    name: ClassVar[str] = "embedding"
    compares: ClassVar[bool] = True

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Compare."""
        assert own is not None

        async def vector(step: Step) -> tuple[float, ...]:
            return await run.embed(_behind(Branch.of(step.text), step))

        first, second = [outcome.value or () for outcome in await run.map(vector, (draft, own))]
        score = cosine(first, second)
        return Verdict(accepted=score >= self.threshold, score=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A process reward model values the reasoning that ends with the draft (RSD, arXiv 2501.19324; at least 0.7).

    Cost: the role `scorer` reads the draft; the target writes only what is rejected. Risk: the answer is no longer the
    target's: it is as good as the reward model, whose scale must fit the threshold. `logit`: its values are
    logits, mapped to 0 .. 1 by a sigmoid.
    """

    threshold: float = 0.7
    logit: bool = True
    name: ClassVar[str] = "reward"
    compares: ClassVar[bool] = False

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Measure."""
        value = await run.reward(draft.branch)
        score = sigmoid(value) if self.logit else value
        return Verdict(accepted=score >= self.threshold, score=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """The target finds the draft likely enough: the geometric mean of its tokens' probabilities.

    Cost: the target reads the draft, whose tokens it needs anyway, and writes only what is rejected: the cheapest check
    that looks at the draft alone. Risk: a wrong number in a fluent sentence costs one token's probability among many;
    a right step in other words than the target's looks unlikely. The threshold is not a published one.
    """

    threshold: float = 0.5
    name: ClassVar[str] = "likelihood"
    compares: ClassVar[bool] = False

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Measure."""
        logprobs = await run.likelihood(draft.branch)
        score = math.exp(sum(logprobs) / len(logprobs))
        return Verdict(accepted=score >= self.threshold, score=score)


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Cosine of the angle between two vectors; 0 where one has no length."""
    lengths = math.hypot(*first) * math.hypot(*second)
    return sum(a * b for a, b in zip(first, second, strict=True)) / lengths if lengths else 0.0


def _behind(question: Branch, *steps: Step) -> Branch:
    return question.after(*(step.generation for step in steps if step.generation is not None))
