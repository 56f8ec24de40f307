"""Lookahead: what it is, its parameters, and its parts. `driving` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from anabranch.strategies.base import Strategy
from anabranch.strategies.lookahead.drafters import ChainDrafter, Drafter, LookupDrafter, ModelDrafter
from anabranch.strategies.lookahead.driving import Driving
from anabranch.strategies.lookahead.verifiers import (
    Embedding,
    Exact,
    Likelihood,
    Numbers,
    Rating,
    Reward,
    Same,
    Verifier,
)

if TYPE_CHECKING:
    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run


class Lookahead(Strategy):
    """Step-level speculation: a draft model runs ahead by steps, the target works on every drafted prefix at once.

    A verifier keeps the steps that say what the target says; the target's own step replaces the first that does not.
    So each round gains at least one step of the target. Token-level speculation goes on inside each call.

    Source: Lookahead Reasoning (arXiv 2506.19830). Its published settings: steps up to a blank line and 100 tokens, depth 4,
    width 1, a judge of its own; or the cosine of embeddings, above 0.95. `verifier="rating"` is SpecReason's (arXiv
    2504.07891): there the target rates the draft from 0 to 9 and writes only what it rates below 7. `verifier="reward"`
    is RSD's (arXiv 2501.19324). The presets `specreason`, `rsd` and `ssr` have their settings.

    When to use: for long chains of reasoning, where the draft is right about most steps and several times as fast.
    Roles: `draft` (left out, and with `drafter="lookup"`, steps are looked up in what was written before), `judge`
    (the target, where there is none), `middle` for a chain of drafts, `embedder` and `scorer` for the verifiers that
    need one.

    Needs: prefill, since steps are continued. Draft and target may have different tokenizers; with the same one a
    continued step is token-exact.

    Cost: the target's calls at each drafted place run side by side; what stood on a rejected draft is wasted. With
    `verifier="same"` a judge's call for each draft comes on top.

    What it does when it cannot: when the draft fails, or speculation costs more time than it saves (`depth="auto"`),
    the target goes on plainly, with a warning. When the judge fails, only exact matches are accepted.

    Figures in the answer: see `Tally.figures`; `target_span`, the span of the target's tokens alone; the last `depth`.
    """

    name: ClassVar[str] = "lookahead"

    depth: int | Literal["auto"] = Field(
        default=4, description="steps that drafting may be ahead; auto: as pays"
    )
    most_depth: int = Field(default=8, ge=1, le=64, description="greatest depth that auto may choose")
    width: int = Field(default=1, ge=1, le=8, description="drafts for each place")
    boundary: str = Field(default="\n\n", min_length=1, description="where a step ends")
    step_tokens: int = Field(default=100, ge=1, description="most completion tokens of a step")
    verifier: Literal["same", "exact", "numbers", "embedding", "rating", "reward", "likelihood"] = Field(
        default="same",
        description="what decides on a draft, after an exact match: a judge model, nothing, the same numbers, the "
        "cosine of embeddings, the target's rating from 0 to 9, a reward model, or how likely the target finds it",
    )
    threshold: float | None = Field(
        default=None,
        description="least value of the verifier's to accept: probability of yes (same, 0.5), cosine (embedding, 0.95), "
        "rating (7), reward (0.7), mean probability of a token (likelihood, 0.5)",
    )
    expected_rating: bool = Field(
        default=False, description="rate by the mean over digits, not the likeliest one"
    )
    reward_is_logit: bool = Field(
        default=True, description="the reward model gives logits, to be mapped to 0 .. 1 by a sigmoid"
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
        if self.in_step and not self.verifier_for().compares:
            raise ValueError(
                f"in_step compares with the target's own steps; verifier={self.verifier!r} does not"
            )
        return self

    @property
    def requires(self) -> dict[str, tuple[str, ...]]:
        """What it cannot do without: steps are continued, and some verifiers measure."""
        measures = {"embedding": "embedder", "reward": "scorer", "likelihood": "target"}
        needs: dict[str, tuple[str, ...]] = {"target": ("prefill",)}
        if (role := measures.get(self.verifier)) is not None:
            needs[role] = (*needs.get(role, ()), self.verifier)
        return needs

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        driving = Driving(self, run)
        try:
            rest = await driving.speculate()
            if rest is not None:
                await self._plainly(run, rest, driving.tokens)
        finally:
            driving.report()

    async def _plainly(self, run: Run, branch: Branch, used: int) -> None:
        """The rest of the answer by the target alone."""
        cap = None if run.max_tokens is None else max(run.max_tokens - used, 1)
        run.finish(await run.relay(run.generate(branch, label="the rest", max_tokens=cap, stop=run.stop)))

    def verifier_for(self) -> Verifier:
        """The verifier that the parameters describe."""
        least: dict[str, Any] = {} if self.threshold is None else {"threshold": self.threshold}
        match self.verifier:
            case "exact":
                return Exact()
            case "numbers":
                return Numbers()
            case "same":
                return Same(prompt=self.prompt("lookahead/same"), **least)
            case "embedding":
                return Embedding(**least)
            case "rating":
                return Rating(prompt=self.prompt("lookahead/rate"), expected=self.expected_rating, **least)
            case "reward":
                return Reward(logit=self.reward_is_logit, **least)
            case "likelihood":
                return Likelihood(**least)

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


def rsd(**params: Any) -> Lookahead:
    """RSD (arXiv 2501.19324): a reward model values each drafted step, and the target writes what it values below 0.7.

    Needs a role `scorer` that measures rewards. Its own settings: one draft at a time, steps up to a blank line.
    """
    return Lookahead(**{"verifier": "reward", "step_tokens": 512, "depth": 1, **params})


def ssr(**params: Any) -> Lookahead:
    """SSR's step-level part (arXiv 2505.15340): within one path, the target rewrites drafted steps that it rates below 7.

    The rating is the mean over the digits by their probability. Its other part, several paths by different approaches
    side by side, is best-of-N's.
    """
    return Lookahead(
        **{"verifier": "rating", "expected_rating": True, "step_tokens": 512, "depth": 1, **params}
    )
