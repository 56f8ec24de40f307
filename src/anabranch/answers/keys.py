"""Keys: equal strings for equivalent answers, so that a vote may count strings."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.answers import normal
from anabranch.answers.equivalence import Equivalence
from anabranch.answers.extraction import Form, extract


class Keys:
    """Gives each text the key of its answer: the first answer that was found equivalent to it.

    Which answers fall together depends on the order of asking only where equivalence is not transitive (rounding).

    Args:
        form: what an answer is; or a function of your own, from the whole text to its key, None where it has no answer.
        equivalence: compares mathematical answers; closed by whoever made it. Without it they are the same where their
            text is, but for spaces, or their value as plain numbers.
    """

    def __init__(
        self, form: Form | Callable[[str], str | None] = "math", equivalence: Equivalence | None = None
    ) -> None:
        self._form = form
        self._equivalence = equivalence
        self._known: list[str] = []

    async def of(self, text: str) -> str | None:
        """The key of a text's answer; None where it has none."""
        if callable(self._form):
            return self._form(text)
        answer = extract(text, self._form)
        if answer is None or self._form == "choice":
            return answer
        if self._form == "text":
            return normal.text(answer) or None
        if self._equivalence is None:
            value = normal.number(answer)
            return normal.squeezed(answer) if value is None else f"{value.normalize():f}"
        return await self._among_known(answer, self._equivalence)

    async def _among_known(self, answer: str, equivalence: Equivalence) -> str:
        for known in self._known:  # also what is added meanwhile: two that come at once are not both new
            if await self._equivalent(known, answer, equivalence):
                return known
        self._known.append(answer)
        return answer

    async def _equivalent(self, known: str, answer: str, equivalence: Equivalence) -> bool:
        """In either direction: of two votes none is the right one."""
        there = await equivalence.verdict(known, answer)
        return there.equal or (there.how == "math" and (await equivalence.verdict(answer, known)).equal)
