"""Verifiers: is a drafted step what the target would say, or good enough to stand in its place?

Every verdict begins with a check that costs nothing: a draft that says the same as the target's own step, but for white
space and case, is accepted. What follows differs in cost and risk; each says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from anabranch.strategies.lookahead.steps import Step

if TYPE_CHECKING:
    from anabranch.orchestrator.branch import Branch
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
        compares: it needs the target's own step at the same place.
    """

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

    compares: ClassVar[bool] = True

    async def judge(self, run: Run, draft: Step, own: Step | None) -> Verdict:
        """Compare."""
        return Verdict(accepted=False, score=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """A judge model says whether two steps mean the same and calculate the same (Lookahead Reasoning, section 3.2).

    Cost: one call of the role `judge` with a prompt of two steps; one token, or none where the server scores labels.
    Risk: a weak judge takes a wrong number for the right one. The threshold is the least probability of "yes".
    """

    prompt: Prompt
    threshold: float = 0.5
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


def _behind(question: Branch, *steps: Step) -> Branch:
    return question.after(*(step.generation for step in steps if step.generation is not None))
