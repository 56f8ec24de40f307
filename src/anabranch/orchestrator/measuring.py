"""Measuring a branch in place of continuing it: the embedding of its text, a reward, the likelihood of its last words.

A measurement is a generation that writes nothing: it goes through the scheduler and stands in the account like any
other. What a backend can measure is among its capabilities; nothing is emulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.orchestrator.errors import InvalidParameter

if TYPE_CHECKING:
    from anabranch.orchestrator.backend import Measure
    from anabranch.orchestrator.branch import Branch
    from anabranch.orchestrator.run import Run


async def measure(run: Run, branch: Branch, what: Measure, *, role: str) -> tuple[float, ...]:
    """See `Run.embed`, `Run.reward` and `Run.likelihood`."""
    if what == "embedding" and not branch.last_turn.strip():
        raise InvalidParameter("branch", "its last turn has no text to embed")
    if what == "likelihood" and not (branch.segments and branch.segments[-1].text):
        raise InvalidParameter(
            "branch", "its likelihood is that of its last segment, and it has none: see Branch.say"
        )
    measured = await run.generate(branch, role=role, label=what, measure=what)
    measured.check_whole("a measurement")
    return measured.measured
