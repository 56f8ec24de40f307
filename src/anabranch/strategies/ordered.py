"""Parts that are decoded side by side, written into the answer in their order, each as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.errors import AnabranchError
from anabranch.orchestrator.generation import Generation, LiveGeneration

if TYPE_CHECKING:
    from anabranch.orchestrator.run import Run

BETWEEN_PARTS = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that is being decoded: what stands before its text in the answer, and its text."""

    header: str
    live: LiveGeneration


async def write_in_order(
    run: Run, parts: Mapping[str, asyncio.Future[Part]], execution: asyncio.Task[Any]
) -> bool:
    """Write the parts in order, each as it comes; False when a stop string of the caller's ended the answer.

    Args:
        parts: by name; a future is set once the part has been started.
        execution: what starts them. A part that was not started when it ends will not come, and is left out, as is
            one that fails; the execution warns of both.
    """
    waiting = list(parts.values())
    for name, part in parts.items():
        waiting.pop(0)
        await asyncio.wait((part, execution), return_when=asyncio.FIRST_COMPLETED)
        if not part.done():
            continue
        try:
            written = await _write(run, part.result())
        except AnabranchError:
            continue
        if not written.text.strip():
            run.warn(f"{name} is empty")
        if written.finish_reason == "length":
            run.finish(written)
        if written.matched is not None and written.matched in run.stop:
            await _drop(run, waiting)
            return False
    return True


async def _write(run: Run, part: Part) -> Generation:
    """Write a part into the answer as it comes; what fails before its first word leaves nothing behind."""
    begun = False
    async for delta in part.live:
        run.think(delta.reasoning)
        text = delta.text if begun else delta.text.lstrip()
        if text and not begun:
            begun = True
            run.emit(f"{BETWEEN_PARTS if run.output.text else ''}{part.header} ")
        run.emit(text)
    return await part.live


async def _drop(run: Run, parts: Sequence[asyncio.Future[Part]]) -> None:
    """Stop the parts that the answer does not need any more, and count what they have written as wasted."""
    for live in [part.result().live for part in parts if part.done()]:
        live.cancel()
        await live.settled()
        if live.error is None:
            run.discard(await live, "after the end of the answer")
