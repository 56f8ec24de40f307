"""Whether two mathematical answers are the same: by their text, as numbers, else by math-verify.

math-verify can take for ever on a strange expression, and its own time limit works in main threads only. So it runs in
processes of its own, and one that takes too long is killed; what it could not decide is not the same.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLong
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Self

from anabranch.answers import normal
from anabranch.answers.extraction import LONGEST
from anabranch.answers.symbolic import same, warm
from anabranch.orchestrator.errors import MissingExtra

if TYPE_CHECKING:
    from pebble import ProcessPool

How = Literal["text", "number", "math", "timeout", "unreadable"]
"""How a verdict was reached: equal but for spaces; as plain numbers; by math-verify; it took too long; it could not be read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two answers are the same, and how that was found."""

    equal: bool
    how: How


class Equivalence:
    """Compares answers. Total: whatever the two strings are, there is a verdict. To be closed, or used with `with`.

    Args:
        timeout_s: seconds for one comparison by math-verify.
        processes: of them at a time.
        kept: verdicts that are remembered.
        compare: compares in place of math-verify, in another process: for tests.

    Raises:
        MissingExtra: math-verify is not installed.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        processes: int = 1,
        kept: int = 4096,
        compare: Callable[[str, str], bool | None] = same,
    ) -> None:
        if compare is same and not (find_spec("math_verify") and find_spec("pebble")):
            raise MissingExtra("comparing mathematical answers", "answers")
        self._timeout_s, self._processes, self._kept, self._compare = timeout_s, processes, kept, compare
        self._known: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._pool: ProcessPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def verdict(self, gold: str, predicted: str) -> Verdict:
        """Whether an answer is the right one. The right one goes first: for sets and intervals that makes a difference.

        Plain decimal numbers are compared exactly: math-verify takes numbers that are both very small for the same.
        """
        found = self._at_once(gold, predicted)
        if found is None:
            found = await self._ask(gold, predicted)
            self._remember((gold, predicted), found)
        return found

    def close(self) -> None:
        """End the processes. A comparison that is under way ends with them."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()

    def _at_once(self, gold: str, predicted: str) -> Verdict | None:
        if max(len(gold), len(predicted)) > LONGEST:
            return Verdict(equal=gold == predicted, how="unreadable")
        if (squeezed := normal.squeezed(gold)) and squeezed == normal.squeezed(predicted):
            return Verdict(equal=True, how="text")
        first, second = normal.number(gold), normal.number(predicted)
        if first is not None and second is not None:
            return Verdict(equal=first == second, how="number")
        if (one := normal.quantity(gold)) and (other := normal.quantity(predicted)) and one[1] != other[1]:
            return Verdict(equal=False, how="text")  # math-verify leaves units out: 5 cm would be 5 m
        if known := self._known.get((gold, predicted)):
            self._known.move_to_end((gold, predicted))
        return known

    async def _ask(self, gold: str, predicted: str) -> Verdict:
        """What math-verify says. Cancelled, it kills the comparison."""
        from pebble import ProcessExpired

        try:
            future: Any = self._started().schedule(
                self._compare, args=(gold, predicted), timeout=self._timeout_s
            )
            equal = await asyncio.wrap_future(future)
        except TooLong:
            return Verdict(equal=False, how="timeout")
        except ProcessExpired:
            return Verdict(equal=False, how="unreadable")
        except (RuntimeError, OSError):  # a process was killed from outside, and took its pool along
            self.close()
            return Verdict(equal=False, how="unreadable")
        return Verdict(equal=bool(equal), how="unreadable" if equal is None else "math")

    def _remember(self, pair: tuple[str, str], verdict: Verdict) -> None:
        self._known[pair] = verdict
        while len(self._known) > self._kept:
            self._known.popitem(last=False)

    def _started(self) -> ProcessPool:
        from pebble import ProcessPool

        if self._pool is None:
            context: Any = multiprocessing.get_context("spawn")  # forks of threads hang
            start = warm if self._compare is same else None
            self._pool = ProcessPool(self._processes, initializer=start, context=context)
        return self._pool
