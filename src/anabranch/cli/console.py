"""The console that everything is drawn on: no guessing at what a number or a bracket means."""

from __future__ import annotations

from typing import Any

from rich.console import Console


class PlainConsole(Console):
    """Rich's console, without highlighting, markup and emoji codes, and with an ordinary error for a broken pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Rich would end the process, with the exit code of a failure."""
        raise BrokenPipeError
