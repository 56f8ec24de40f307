"""What a `local:` URL says: which model file, how many slots, how long a context, how many threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl

from anabranch.orchestrator.errors import InvalidParameter, MissingExtra

SLOTS = 8
CONTEXT = 4096
MOST_THREADS = 4  # more gain little on small models, and take the machine from whoever else works on it
_LARGEST = {"slots": 256, "context": 1 << 20, "threads": 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run the embedded engine.

    Attributes:
        model: the GGUF file; None for the default model, fetched at first use.
        slots: calls that decode at the same time.
        context: most tokens of prompt and answer together, for each call.
        threads: CPU threads.
    """

    model: Path | None = None
    slots: int = SLOTS
    context: int = CONTEXT
    threads: int = 1


def require_engine() -> None:
    """Raises MissingExtra where llama.cpp's package is not installed."""
    if find_spec("xllamacpp") is None:
        raise MissingExtra("the embedded engine", "local")


def parse(url: str, environ: Mapping[str, str]) -> Settings:
    """The settings in a `local:` URL. `ANABRANCH_LOCAL_THREADS` counts where the URL names no threads.

    Raises:
        InvalidParameter: no such file, an unknown option, or a bad value.
    """
    place, _, query = url.partition(":")[2].partition("?")
    options = {"threads": environ.get("ANABRANCH_LOCAL_THREADS") or str(default_threads())}
    options |= dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _LARGEST.keys()):
        raise InvalidParameter(f"backend: {unknown[0]}", f"no such option; `local:` has {', '.join(_LARGEST)}")
    numbers = {name: _number(name, text) for name, text in options.items()}
    return Settings(model=_file(place), **numbers)


def default_threads() -> int:
    """One for each physical core that this process may use, `MOST_THREADS` at most."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return max(1, min(MOST_THREADS, (os.cpu_count() or 2) // 2))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(MOST_THREADS, len(cores)))


def _siblings(cpu: int) -> str:
    """The hardware threads of this one's core, as the kernel writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _LARGEST[name]:
        raise InvalidParameter(f"backend: {name}", f"needs a number from 1 to {_LARGEST[name]}, got {text!r}")
    return int(text)


def _file(place: str) -> Path | None:
    if not place.strip("/"):
        return None
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise InvalidParameter("backend", f"no such model file: {path}")
    return path
