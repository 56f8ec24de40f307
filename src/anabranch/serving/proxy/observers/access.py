"""Access log: one line for each request, when it has ended.

The lines go to the logger `anabranch.access`, at WARNING where the reply failed, at DEBUG for probes and scrapes, else
at INFO. A line holds figures and names; never a key, a prompt or an answer. Without `configure` a line is JSON.

Invariant: whatever a client sends, a request is one line: what it sent is cut to a length and escaped.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from anabranch.orchestrator.events import (
    Event,
    GenerationDiscarded,
    GenerationFailed,
    GenerationFinished,
    GenerationStarted,
)
from anabranch.serving.proxy.requests import RequestInfo, RunListener

log = logging.getLogger("anabranch.access")

Format = Literal["json", "text", "none"]

LONGEST = 256
"""Characters that are kept of what a client sent."""
_OWNER = 8
_WORD = re.compile(r"[!#-<>-\[\]-~]*")
"""Printable ASCII but for blanks, quotes, = and the backslash."""
_QUIET = ("/health", "/ready", "/metrics", "/version", "/ui", "/v1/anabranch/")


def configure(format: Format = "json", level: str | int = logging.INFO) -> None:
    """Write the log to standard output, and there only. May be called again: the last call counts."""
    for handler in log.handlers[:]:
        log.removeHandler(handler)
    log.propagate = False
    log.disabled = format == "none"
    if format != "none":
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(_TextFormatter() if format == "text" else logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(level.upper() if isinstance(level, str) else level)


class AccessLog:
    """Writes the access log. An observer; belongs to one event loop."""

    def __init__(self) -> None:
        self._tallies: dict[int, Tally] = {}

    def request_began(self, request: RequestInfo) -> None:
        """Nothing is written before a request's end."""

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """Count what its runs use: all of them, whether they come to an end or not."""
        tally = self._tallies.get(id(request))
        if tally is None:
            tally = self._tallies[id(request)] = Tally()
        return _Ear(tally).hear

    def request_ended(self, request: RequestInfo) -> None:
        """Write its line."""
        tally = self._tallies.pop(id(request), None)
        level = _level(request)
        if log.isEnabledFor(level):
            # Not by `log.log`, which looks for the place in the code that the record comes from.
            log.handle(log.makeRecord(log.name, level, "", 0, Entry(fields_of(request, tally)), (), None))


@dataclass(slots=True)
class Tally:
    """Branches and tokens of the runs of one request, as in `RequestInfo`."""

    branches: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What is logged of a request. As a string it is a line of JSON."""

    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps(self.fields, separators=(",", ":"))


def fields_of(request: RequestInfo, tally: Tally | None) -> dict[str, Any]:
    """What is said of a request. Figures that are not known are None: those of what passes through, as a rule."""
    used: Tally | RequestInfo = tally if tally is not None else request
    known = tally is not None or request.branches > 0 or request.completion > 0
    return {
        "ts": datetime.fromtimestamp(request.started_at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "request_id": request.request_id,
        "method": request.method[:LONGEST],
        "path": request.path[:LONGEST],
        "status": request.status,
        "strategy": request.strategy,
        "model": request.model[:LONGEST] or None,
        "stream": request.stream,
        "wall_ms": _ms(request.wall_s),
        "first_byte_ms": _ms(request.first_byte_s),
        "branches": used.branches if known else None,
        "prompt": used.prompt if known else None,
        "cached": used.cached if known else None,
        "completion": used.completion if known else None,
        "wasted": used.wasted if known else None,
        "error_code": request.error_code[:LONGEST] or None,
        "owner": request.owner[:_OWNER] or None,
    }


class _Ear:
    """Hears one run's events; generations are numbered within a run."""

    __slots__ = ("_failed", "_started", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._started: set[int] = set()
        self._failed: set[int] = set()

    def hear(self, event: Event) -> None:
        """Take an event."""
        kind, tally = type(event), self._tally
        if kind not in _HEARD:
            return
        if isinstance(event, GenerationStarted):
            if event.id not in self._started:
                self._started.add(event.id)
                tally.branches += 1
        elif isinstance(event, GenerationFinished):
            tally.prompt += event.prompt
            tally.cached += min(event.cached, event.prompt)
            tally.completion += event.completion
        elif isinstance(event, GenerationFailed):
            self._failed.add(event.id)
        elif isinstance(event, GenerationDiscarded):
            tally.wasted += event.completion
            if event.id in self._failed:  # the event of its failure did not say what it had written
                tally.completion += event.completion


_HEARD = frozenset((GenerationStarted, GenerationFinished, GenerationFailed, GenerationDiscarded))


class _TextFormatter(logging.Formatter):
    """For people: time, status, what was asked for, then what is known as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        if not isinstance(record.msg, Entry):
            return super().format(record)
        fields = dict(record.msg.fields)
        ts, status = fields.pop("ts"), fields.pop("status")
        method, path = fields.pop("method"), fields.pop("path")
        rest = [f"{name}={_bare(value)}" for name, value in fields.items() if value is not None]
        return " ".join([ts, f"{status:03d}", _bare(method), _bare(path), *rest])


def _level(request: RequestInfo) -> int:
    if request.status >= 500 or (request.error_code and request.status < 400):
        return logging.WARNING
    return logging.DEBUG if request.path.startswith(_QUIET) else logging.INFO


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _bare(value: object) -> str:
    """A value as one word: in quotes and escaped where it would not be one."""
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else json.dumps(value)
    return str(value).lower()  # a number, or whether something is so
