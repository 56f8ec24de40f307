"""Lookahead: what it is, its parameters, and its parts. `driving` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from anabranch.strategies.base import Strategy
from anabranch.strategies.lookahead.drafters import ChainDrafter, Drafter, LookupDrafter, ModelDrafter
from anabranch.strategies.lookahead.driving import Driving
from anabranch.strategies.lookahead.verifiers import Exact, Rating, Same, Verifier

if TYPE_CHECKING:
    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run


class Lookahead(Strategy):
    """Step-level speculation: a draft model runs ahead by steps, the target works on every drafted prefix at once.

    A verifier keeps the steps that say what the target says; the target's own step replaces the first that does not.
    So each round gains at least one step of the target. Token-level speculation goes on inside each call.

    Source: Lookahead Reasoning (arXiv 2506.19830). Its published settings: steps up to a blank line and 100 tokens, depth 4,
    width 1, a judge of its own. `verifier="rating"` is SpecReason's (arXiv 2504.07891): there the target rates the
    draft from 0 to 9 and writes only what it rates below 7; its steps have up to 512 tokens.

    When to use: for long chains of reasoning, where the draft is right about most steps and several times as fast.
    Roles: `draft` (left out, and with `drafter="lookup"`, steps are looked up in what was written before), `judge`
    (the target, where there is none), `middle` for a chain of drafts.

    Needs: prefill, since steps are continued. Draft and target may have different tokenizers; with the same one a
    continued step is token-exact.

    Cost: the target's calls at each drafted place run side by side; what stood on a rejected draft is wasted. With
    `verifier="same"` a judge's call for each draft comes on top.

    What it does when it cannot: when the draft fails, or speculation costs more time than it saves (`depth="auto"`),
    the target goes on plainly, with a warning. When the judge fails, only exact matches are accepted.
    """

    name: ClassVar[str] = "lookahead"
    requires: ClassVar[dict[str, tuple[str, ...]]] = {"target": ("prefill",)}

    depth: int | Literal["auto"] = Field(
        default=4, description="steps that drafting may be ahead; auto: as pays"
    )
    most_depth: int = Field(default=8, ge=1, le=64, description="greatest depth that auto may choose")
    width: int = Field(default=1, ge=1, le=8, description="drafts for each place")
    boundary: str = Field(default="\n\n", min_length=1, description="where a step ends")
    step_tokens: int = Field(default=100, ge=1, description="most completion tokens of a step")
    verifier: Literal["same", "exact", "rating"] = Field(
        default="same", description="judge model, exact match, or the target's rating from 0 to 9"
    )
    threshold: float | None = Field(
        default=None, description="least probability of yes (same, 0.5), or least rating (rating, 7)"
    )
    expected_rating: bool = Field(
        default=False, description="rate by the mean over digits, not the likeliest one"
    )
    drafter: Literal["model", "lookup", "chain"] = Field(
        default="model",
        description="the role draft, a look-up in the text, or draft checked by the role middle",
    )
    lookup_words: int = Field(default=4, ge=1, description="words that must be the same for a look-up")
    in_step: bool = Field(default=False, description="the synchronous form, for comparison")
    speculate: Literal["all", "reasoning"] = Field(
        default="all", description="where: everywhere, or until the reasoning ends"
    )
    most_repeats: int = Field(default=3, ge=1, description="equal steps in a row after which the answer ends")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.depth != "auto" and self.depth < 0:
            raise ValueError("depth is a number from 0 on, or auto")
        if self.in_step and self.verifier == "rating":
            raise ValueError("in_step compares with the target's own steps; a rating does not")
        return self

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        driving = Driving(self, run)
        rest = await driving.speculate()
        if rest is not None:
            await self._plainly(run, rest, driving.tokens)

    async def _plainly(self, run: Run, branch: Branch, used: int) -> None:
        """The rest of the answer by the target alone."""
        cap = None if run.max_tokens is None else max(run.max_tokens - used, 1)
        run.finish(await run.relay(run.generate(branch, label="the rest", max_tokens=cap, stop=run.stop)))

    def verifier_for(self) -> Verifier:
        """The verifier that the parameters describe."""
        if self.verifier == "exact":
            return Exact()
        if self.verifier == "rating":
            least = 7.0 if self.threshold is None else self.threshold
            return Rating(prompt=self.prompt("lookahead/rate"), threshold=least, expected=self.expected_rating)
        return Same(
            prompt=self.prompt("lookahead/same"), threshold=0.5 if self.threshold is None else self.threshold
        )

    def drafter_for(self, run: Run) -> Drafter:
        """The drafter that the parameters describe."""
        if self.drafter == "lookup":
            return LookupDrafter(boundary=self.boundary, words=self.lookup_words)
        small = self._model("draft", run)
        if self.drafter == "model":
            return small
        rating = Rating(prompt=self.prompt("lookahead/rate"), expected=self.expected_rating, role="middle")
        return ChainDrafter(small, self._model("middle", run), rating)

    def _model(self, role: str, run: Run) -> ModelDrafter:
        return ModelDrafter(role, boundary=self.boundary, tokens=self.step_tokens, stop=run.stop)


def specreason(**params: Any) -> Lookahead:
    """SpecReason (arXiv 2504.07891): the target rates each drafted step, and writes what it rates below 7.

    Its own settings: steps of up to 512 tokens, one draft at a time; a greater `depth` drafts on while it rates.
    """
    return Lookahead(**{"verifier": "rating", "step_tokens": 512, "depth": 1, **params})
