"""Drafters: who writes the steps ahead of the target."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from anabranch.strategies.lookahead.steps import Step, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run
    from anabranch.strategies.lookahead.verifiers import Verifier


class Drafter(Protocol):
    """Writes the next step after a branch."""

    async def step(self, run: Run, branch: Branch, label: str) -> Step | None:
        """The step; None where there is none to be had. Raises AnabranchError where the drafter has failed."""
        ...


class ModelDrafter:
    """A model of the role `draft`, or another one.

    Args:
        boundary, tokens, stop: where a step ends: at the boundary, after so many tokens, at a stop string.
    """

    def __init__(self, role: str, *, boundary: str, tokens: int, stop: Sequence[str]) -> None:
        self._role, self._boundary, self._tokens = role, boundary, tokens
        self._stop = (boundary, *stop)

    async def step(self, run: Run, branch: Branch, label: str) -> Step | None:
        """Have the model write it."""
        live = run.generate(branch, role=self._role, label=label, stop=self._stop, max_tokens=self._tokens)
        return step_of(await live, self._boundary)


class ChainDrafter:
    """A small model's step where a middle one finds it good enough, else the middle one's own.

    Args:
        verifier: looks at the small model's step alone (`compares` is false).
    """

    def __init__(self, small: Drafter, middle: Drafter, verifier: Verifier) -> None:
        self._small, self._middle, self._verifier = small, middle, verifier

    async def step(self, run: Run, branch: Branch, label: str) -> Step | None:
        """Draft, judge, and draft again where need be."""
        drafted = await self._small.step(run, branch, f"{label}, small")
        usable = drafted is not None and drafted.whole and not drafted.empty
        if usable and drafted and (await self._verifier.judge(run, drafted, None)).accepted:
            return drafted
        if drafted is not None and drafted.generation is not None:
            run.discard(drafted.generation, "rejected by the middle model")
        return await self._middle.step(run, branch, f"{label}, middle")


class LookupDrafter:
    """What followed the last words where they stood before: in the question, or earlier in the answer.

    Costs nothing, and helps where answers repeat what they were given (prompt lookup decoding).

    Args:
        words: so many last words must be the same.
    """

    def __init__(self, *, boundary: str, words: int) -> None:
        self._boundary, self._words = boundary, words

    async def step(self, run: Run, branch: Branch, label: str) -> Step | None:
        """Look it up."""
        found = look_up(branch.question, branch.text, boundary=self._boundary, words=self._words)
        if found is None:
            return None
        return Step(text=found, branch=branch.say(found + self._boundary), tokens=max(1, len(found) // 4))


def look_up(question: str, written: str, *, boundary: str, words: int) -> str | None:
    """The step that followed the last words where they stood before, up to its boundary, or None."""
    last = written.split()[-words:]
    if len(last) < words:
        return None
    text = question + boundary + written
    *earlier, _ = re.finditer(r"\s+".join(map(re.escape, last)), text)
    if not earlier:
        return None
    followed = text[earlier[-1].end() :].lstrip()
    return followed.partition(boundary)[0].strip() or None
