"""Records: the records of a request's generations, kept so that very many of them are no burden.

While a generation runs, its record is an object. At its end the figures become a row of plain values: CPython's garbage
collector, which looks at every object again and again for as long as the run goes on, leaves such tuples alone. What
may still be found out afterwards stands beside the rows, as marks. Whoever looks at a record is given an object, made
for the occasion.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, overload

from anabranch.orchestrator.accounting import GenerationRecord
from anabranch.orchestrator.branch import GenerationId

READ, REJECTED, DISCARDED = 1, 2, 4
"""Marks of a generation; see the attributes of `GenerationRecord`."""

_MARKED = ("read", "rejected", "discarded", "wasted")
_FIGURES = tuple(field.name for field in fields(GenerationRecord) if field.name not in _MARKED)
_PARENTS, _FINISH_REASON = _FIGURES.index("parents"), _FIGURES.index("finish_reason")

_Row = tuple[Any, ...]
_row = attrgetter(*_FIGURES)


class Records:
    """The records of all generations of a request, by their numbers."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._running: dict[int, GenerationRecord] = {}
        self._marks = bytearray()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> GenerationRecord:
        """What is known of a generation by now."""
        record = GenerationRecord(**dict(zip(_FIGURES, self._figures(number), strict=True)))
        record.read = self.marked(number, READ)
        record.rejected = self.marked(number, REJECTED)
        record.discarded = self.marked(number, DISCARDED)
        record.wasted = record.completion if record.discarded else 0
        return record

    def open(self, record: GenerationRecord) -> None:
        """Take in the record of one more generation. Until `close` its figures may change, but not its marks."""
        self._running[record.id] = record
        self._rows.append(())
        self._marks.append(0)

    def close(self, record: GenerationRecord) -> None:
        """Keep the figures of a generation that has ended."""
        self._rows[record.id - 1] = _row(self._running.pop(record.id))

    def mark(self, number: int, mark: int) -> bool:
        """Mark a generation; returns whether that is new."""
        marked = self._marks[number - 1]
        self._marks[number - 1] = marked | mark
        return not marked & mark

    def marked(self, number: int, mark: int) -> bool:
        """Whether a generation has this mark."""
        return bool(self._marks[number - 1] & mark)

    def parents(self, number: int) -> tuple[GenerationId, ...]:
        """The generations that this one directly depends on."""
        parents: tuple[GenerationId, ...] = self._figures(number)[_PARENTS]
        return parents

    def finish_reason(self, number: int) -> str:
        """Why a generation ended; empty while it runs."""
        reason: str = self._figures(number)[_FINISH_REASON]
        return reason

    def _figures(self, number: int) -> _Row:
        running = self._running.get(number)
        return self._rows[number - 1] if running is None else _row(running)


class RunRecords(Sequence[GenerationRecord]):
    """The records of one run's generations, those of the runs that it delegates to included, in the order of asking."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.numbers = array("Q")

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> GenerationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GenerationRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> GenerationRecord | tuple[GenerationRecord, ...]:
        if isinstance(index, slice):
            return tuple(map(self._records.__getitem__, self.numbers[index]))
        return self._records[self.numbers[index]]

    def __iter__(self) -> Iterator[GenerationRecord]:
        return map(self._records.__getitem__, self.numbers)

    def __repr__(self) -> str:
        return f"<{len(self)} generations>"

    @property
    def finish_reasons(self) -> set[str]:
        """The reasons for which its generations ended."""
        return set(map(self._records.finish_reason, self.numbers))
