"""The figures of a finished run in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.cli.text import count, one_line, seconds


def figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each figure in `Answer.to_dict`, in the order in which to show them."""
    usage: Mapping[str, Any] = summary.get("usage") or {}
    timing: Mapping[str, Any] = summary.get("timing") or {}
    shown: list[tuple[str, str]] = []
    if usage:
        prompt, cached = usage.get("prompt", 0), usage.get("cached", 0)
        shown = [
            ("branches", f"{usage.get('branches', 0):,}"),
            ("work", f"{usage.get('work', 0):,} tok"),
            ("span", f"{usage.get('span', 0):,} tok"),
            ("parallelism", f"{usage.get('parallelism', 1.0):.1f}\u00d7"),
            ("cached", f"{100 * cached / prompt:.0f} %" if prompt else "0 %"),
            ("wasted", f"{usage.get('wasted', 0):,} tok"),
        ]
    for name, key in (("wall", "wall_s"), ("first token", "first_token_s")):
        if timing.get(key) is not None:
            shown.append((name, seconds(timing[key])))
    return shown


def summary_line(summary: Mapping[str, Any]) -> str:
    """All figures on one line: `9 branches · work 812 tok · …`."""
    return " · ".join(_said(name, value) for name, value in figures(summary))


def _said(name: str, value: str) -> str:
    if name == "branches":
        return count(int(value.replace(",", "")), "branch")
    return f"{name} {value}"


def reported_line(summary: Mapping[str, Any]) -> str:
    """What the strategy reports of itself, on one line: `acceptance 0.83 · drafts: accepted 5, rejected 1 · …`."""
    reported: Mapping[str, Any] = summary.get("figures") or {}
    told = [_reported(name, value) for name, value in reported.items() if value not in (None, "", {}, [])]
    return one_line(" · ".join(told))


def _reported(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if isinstance(value, Mapping):
        return f"{name}: {', '.join(f'{key} {each}' for key, each in value.items())}"
    if isinstance(value, list):
        return f"{name}: {', '.join(map(str, value))}"
    return f"{name} {value}"


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What the user should know beside the answer: that it is not what was asked for, and what went wrong."""
    said = [str(warning) for warning in summary.get("warnings") or ()]
    if reason := summary.get("fell_back"):
        said.insert(0, f"{summary.get('strategy')} did not apply, so this is a plain answer: {reason}")
    if summary.get("finish_reason") == "length":
        said.append("the limit on tokens cut the answer short")
    return [one_line(line) for line in said]
