"""What strategies have in common: parameters that are checked, and where their prompt texts come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from anabranch.prompts import Prompt, load

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run


class Strategy(BaseModel):
    """A strategy whose fields are its parameters. Building one with a bad value raises pydantic's ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    honours: ClassVar[frozenset[str]] = frozenset()
    """What of a chat request it honours beside text, sampling, `max_tokens` and `stop`: any of `tools`, `tool_history`,
    `logprobs`, `response_format`, `images`, `audio`. With anything else the proxy decodes plainly, and says so."""

    prompts: Path | None = Field(
        default=None, description="folder with prompt texts of your own, which go before ours"
    )

    async def __call__(self, run: Run) -> None:
        """Answer `run.question`."""
        raise NotImplementedError

    def prompt(self, name: str) -> Prompt:
        """The prompt text of this name, the user's own where there is one."""
        return load(name, self.prompts)
