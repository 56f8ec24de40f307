"""How benchmarks show their figures: tables and targets, for people (rich), documents (Markdown) and programs (JSON).

A missed target is shown, and is no failure; `--check` makes it one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Cell = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure, and the most that it may be."""

    name: str
    value: float
    at_most: float

    @property
    def met(self) -> bool:
        """Whether it is met."""
        return self.value <= self.at_most


@dataclass(kw_only=True)
class Report:
    """Lines of figures under a title. `numbers_from` is the column from which on they are aligned as numbers."""

    title: str
    columns: tuple[str, ...]
    numbers_from: int = 1
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def row(self, *cells: Cell) -> None:
        """Add a line."""
        assert len(set(self.columns)) == len(self.columns), "JSON needs a name for each column"
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def target(self, name: str, value: float, at_most: float) -> None:
        """Hold a figure against the most that it may be."""
        self.targets.append(Target(name=name, value=value, at_most=at_most))


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--markdown", action="store_const", dest="form", const="markdown", default="table")
    options.add_argument("--json", action="store_const", dest="form", const="json")
    options.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    return options


def finish(reports: Sequence[Report], options: argparse.Namespace) -> None:
    """Print all, and end the program as `--check` wants it."""
    {"table": _tables, "markdown": _markdown, "json": _json}[options.form](reports)
    missed = any(not target.met for report in reports for target in report.targets)
    sys.exit(1 if options.check and missed else 0)


def shown(cell: Cell) -> str:
    """A figure with three digits or so."""
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else cell
    if math.isnan(cell):
        return "-"
    return f"{cell:,.{0 if abs(cell) >= 100 else 1 if abs(cell) >= 10 else 2}f}"


def machine() -> str:
    """What this runs on, in general terms."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    )


def _verdicts(report: Report) -> Iterable[tuple[bool, str]]:
    for target in report.targets:
        mark = "✓" if target.met else "✗"
        value = f"{target.value:.3f}" if target.value < 10 else shown(target.value)
        yield target.met, f"{mark} {target.name}: {value} (target ≤ {target.at_most:g})"


def _tables(reports: Sequence[Report]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    for report in reports:
        table = Table(title=report.title, title_justify="left")
        for index, column in enumerate(report.columns):
            table.add_column(column, justify="right" if index >= report.numbers_from else "left")
        for row in report.rows:
            table.add_row(*map(shown, row))
        console.print(table)
        for met, verdict in _verdicts(report):
            console.print(verdict, style="green" if met else "bold red", highlight=False)
    console.print(machine(), style="dim", highlight=False)


def _markdown(reports: Sequence[Report]) -> None:
    for report in reports:
        left = report.numbers_from
        rule = ["---"] * left + ["---:"] * (len(report.columns) - left)
        lines = [report.columns, rule, *(tuple(map(shown, row)) for row in report.rows)]
        print(f"**{report.title}**\n")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")
        for _, verdict in _verdicts(report):
            print(f"- {verdict}")
        print()


def _json(reports: Sequence[Report]) -> None:
    tables = [
        {
            "title": report.title,
            "rows": [dict(zip(report.columns, map(_plain, row), strict=True)) for row in report.rows],
            "targets": [
                {"name": each.name, "value": each.value, "at_most": each.at_most, "met": each.met}
                for each in report.targets
            ],
        }
        for report in reports
    ]
    print(json.dumps({"machine": machine(), "tables": tables}, ensure_ascii=False))


def _plain(cell: Cell) -> Cell | None:
    """A figure that is unknown is null in JSON."""
    return None if isinstance(cell, float) and math.isnan(cell) else cell
