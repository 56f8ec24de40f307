"""What a line of a recording says: one trace, or the header. Keys that are not known here are kept.

Invariant: where a trace has chunks, their texts and reasonings, joined, are exactly its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from anabranch.orchestrator.backend import FinishReason

FORMAT = "anabranch-recording"
VERSION = 1

Count = Annotated[int, Field(ge=0, strict=True)]


def _as_text(value: Any) -> Any:
    """Numbers as they are written: other people's files have ids and answers that are numbers."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Words = Annotated[str, BeforeValidator(_as_text)]
"""Text, or a number that stands for it."""


class Line(BaseModel):
    """What all lines have in common: frozen, and unknown keys are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def to_line(self) -> dict[str, Any]:
        """As a JSON object; what was never set is left out."""
        return self.model_dump(exclude_unset=True)


class Header(Line):
    """The first line of a recording, where it has one."""

    format: str = FORMAT
    version: int = VERSION


class Chunk(Line):
    """A piece of a trace, as it came.

    Attributes:
        tokens: completion tokens in it.
        seconds: when it came, since the call got its slot; None where that is unknown.
        confidences: of its tokens, in order, as far as they were reported: minus the mean log-probability of the most
            likely candidates, in nats (DeepConf, arXiv 2508.15260, section 2). Higher is surer.
        logprobs: log-probability of the tokens themselves, in nats, as far as reported.
    """

    text: str = ""
    reasoning: str = ""
    tokens: Count = 1
    seconds: Annotated[FiniteFloat, Field(ge=0)] | None = None
    confidences: tuple[FiniteFloat, ...] = ()
    logprobs: tuple[FiniteFloat, ...] = ()

    @model_validator(mode="after")
    def _check_figures(self) -> Self:
        for name in ("confidences", "logprobs"):
            if (given := len(getattr(self, name))) > self.tokens:
                raise ValueError(f"{given} {name} for {self.tokens} tokens; give one a token at most")
        return self


class Trace(Line):
    """One recorded generation.

    Attributes:
        id: of the problem.
        problem: its text; `messages`: the conversation that was sent, where that is not the problem alone. One of
            them is needed.
        answer: the right answer, where it is known.
        sample: number of this trace among those of the problem, from 0 on.
        tokens: completion tokens as the server counted them; None where they are unknown.
        characters: of text and reasoning; needed only where the text is not given in full.
        top_logprobs: how many candidates the confidences were taken over.
        sampling: temperature, seed and so on, by the names that `Sampling` has.
        score: a reward model's, or any other.
        answer_given: the answer that the trace comes to, as whoever wrote the file read it.
    """

    id: Annotated[Words, Field(min_length=1)]
    problem: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    answer: Words | None = None
    sample: Count
    text: str
    reasoning: str = ""
    finish_reason: FinishReason = "stop"
    tokens: Count | None = None
    characters: Count | None = None
    chunks: tuple[Chunk, ...] = ()
    top_logprobs: Count | None = None
    model: str = ""
    sampling: Mapping[str, Any] = Field(default_factory=dict)
    score: FiniteFloat | None = None
    answer_given: Words | None = None

    @model_validator(mode="after")
    def _check_prompt(self) -> Self:
        if not self.problem and not self.messages:
            raise ValueError("no prompt; give `problem` (text) or `messages`")
        if any(not isinstance(message.get("role"), str) for message in self.messages or ()):
            raise ValueError("`messages` has one without a role; write each as {role, content}")
        return self

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        for name in ("text", "reasoning"):
            if self.chunks and _joined(self.chunks, name) != getattr(self, name):
                raise ValueError(f"the chunks' {name}, joined, is not `{name}`; mend them or leave them out")
        return self

    @property
    def confident(self) -> bool:
        """Whether it says how sure its tokens were; a trace without tokens says all there is to say."""
        return self.tokens == 0 or any(chunk.confidences for chunk in self.chunks)


def _joined(chunks: Sequence[Chunk], name: str) -> str:
    return "".join([getattr(chunk, name) for chunk in chunks])
