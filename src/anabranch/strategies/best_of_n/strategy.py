"""Best-of-N: what it is, and its parameters. `tracing` runs it; the rules decide."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from anabranch.strategies.base import Strategy
from anabranch.strategies.best_of_n.confidence import WINDOW, Confidence, Measure
from anabranch.strategies.best_of_n.judging import Judge, shipped
from anabranch.strategies.best_of_n.pruning import Combined, Decided, Looping, LowConfidence, Redundant
from anabranch.strategies.best_of_n.rules import PruningRule, SelectionRule, StoppingRule
from anabranch.strategies.best_of_n.selection import BestScore, ConfidenceVote, MajorityVote, ScoreVote
from anabranch.strategies.best_of_n.stopping import ESC, AdaptiveConsistency, Beta, Consensus, Fixed, Waves
from anabranch.strategies.best_of_n.tracing import Tracing

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run


class BestOfN(Strategy):
    """Several traces of one request from one shared prefix, and the answer that most of them come to.

    How many traces there are is up to a stopping rule, which of them are stopped before their end to pruning rules, and
    which answer is taken to a selection rule.

    Source: self-consistency (arXiv 2203.11171); adaptive consistency (arXiv 2305.11860); ESC (arXiv 2401.10480); DeepConf
    (arXiv 2508.15260); `prune` by `redundant` is DeepPrune (arXiv 2510.08483) with a small judge of our own, which is weak.
    What each rule saves and loses: docs/best_of_n.md.

    When to use: where answers can be compared, such as in mathematics, and the model is right more often than not.

    Needs: nothing of the server; log-probabilities for `vote` by confidence and `prune` by confidence, without which votes
    count alike, with a warning. A role `scorer` that measures rewards for `vote="score"` and `"best_score"`.
    `answers="math"` wants the extra `anabranch[answers]`; without it 1/2 and 0.5 are two answers, with a warning.

    Cost: the work of all traces, the span of the longest one in each wave. What a pruned trace wrote is wasted.

    What it does when it cannot: failed traces are warnings while one is left; without any answer that can be read, the first
    complete trace is the answer, with a warning. At temperature 0 all traces would be one: they are sampled at 0.7, with
    a warning.

    Figures in the answer: `traces` by what became of them, `shares` of the votes for each answer, `answer`, `confidences`.
    """

    name: ClassVar[str] = "best_of_n"

    n: int = Field(default=8, ge=1, le=1024, description="most traces")
    stop: Literal["fixed", "adaptive", "esc", "consensus"] = Field(
        default="adaptive",
        description="when there are enough: at n; when the first answer surely beats the second; when a window "
        "agrees; when an answer has nearly all of the votes",
    )
    wave: int = Field(
        default=4, ge=1, description="traces that are asked for at a time (adaptive), or of a window (esc)"
    )
    certainty: float = Field(
        default=0.95, gt=0.5, lt=1.0, description="of adaptive's test, or the share of votes for consensus"
    )
    answers: Literal["math", "text", "choice"] = Field(
        default="math", description="what an answer is, and so which answers are the same"
    )
    vote: Measure | Literal["one", "score", "best_score"] = Field(
        default="one",
        description="what a vote weighs: the same as any other, a reward, or a measure of confidence; best_score takes the "
        "trace with the best reward",
    )
    keep_votes: float = Field(
        default=1.0, gt=0.0, le=1.0, description="share of the traces that vote, the heaviest"
    )
    prune: tuple[Literal["loops", "settled", "confidence", "redundant"], ...] = Field(
        default=("loops", "settled"),
        description="what stops a running trace: repeating itself, a vote that nothing can change any more, low "
        "confidence, or others that begin as if for the same answer",
    )
    keep_confident: float = Field(
        default=0.9,
        gt=0.0,
        le=1.0,
        description="share of the warm-up traces that confidence pruning would keep",
    )
    warm_up: int = Field(default=4, ge=1, description="traces before confidence prunes (published: 16 of 256)")
    window: int = Field(default=WINDOW, ge=1, description="tokens over which confidence is taken")
    prefix: int = Field(
        default=2000, ge=1, description="characters of each trace after which redundant ones are looked for"
    )
    judge: Path | None = Field(
        default=None, description="a judge of your own for redundant ones, from `anabranch train-judge`"
    )
    temperature: float = Field(
        default=0.7,
        gt=0.0,
        le=2.0,
        description="where the request has none, or 0, at which all traces were one",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.judge is not None and not self.judge.is_file():
            raise ValueError(f"judge: there is no file {self.judge}; anabranch train-judge makes one")
        if "settled" in self.prune and self.vote != "one":
            object.__setattr__(self, "prune", tuple(rule for rule in self.prune if rule != "settled"))
        return self

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        await Tracing(self, run).answer()

    @property
    def requires(self) -> dict[str, tuple[str, ...]]:
        """Rewards where votes are weighed by them."""
        return {"scorer": ("reward",)} if self.scored else {}

    @property
    def scored(self) -> bool:
        """Whether traces get a reward model's value."""
        return self.vote in ("score", "best_score")

    @property
    def confident(self) -> bool:
        """Whether the confidence of tokens is wanted."""
        return "confidence" in self.prune or self.vote in ("mean", "tail", "bottom", "lowest")

    def stopping(self) -> StoppingRule:
        """The stopping rule that the parameters describe."""
        match self.stop:
            case "fixed":
                return Fixed(n=self.n)
            case "adaptive":
                rule = AdaptiveConsistency(criterion=Beta(confidence=self.certainty), most=self.n)
                return Waves(rule=rule, size=self.wave)
            case "esc":
                return ESC(window=min(self.wave, self.n), most=self.n)
            case "consensus":
                return Consensus(share=self.certainty, least=min(self.wave, self.n), most=self.n)

    def pruning(self) -> PruningRule:
        """The pruning rules together, but for confidence, which is watched token by token."""
        made: dict[str, PruningRule] = {"loops": Looping(), "settled": Decided(traces=self.n)}
        if "redundant" in self.prune:
            judge = shipped() if self.judge is None else Judge.from_json(self.judge.read_text(encoding="utf-8"))
            made["redundant"] = Redundant(judge=lru_cache(maxsize=65536)(judge), prefix=self.prefix)
        return Combined(rules=tuple(made[name] for name in self.prune if name in made))

    def low_confidence(self) -> LowConfidence | None:
        """The rule that watches confidence, where it is wanted."""
        if "confidence" not in self.prune:
            return None
        return LowConfidence(keep=self.keep_confident, warm_up=self.warm_up, window=self.window)

    def selection(self) -> SelectionRule:
        """The selection rule."""
        match self.vote:
            case "one":
                return MajorityVote()
            case "score":
                return ScoreVote()
            case "best_score":
                return BestScore()
            case measure:
                sure = Confidence(measure=measure, window=self.window)
                return ConfidenceVote(confidence=sure, keep=self.keep_votes)
