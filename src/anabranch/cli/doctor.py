"""`anabranch doctor`: what is installed here, which servers can be reached, and what each can do."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli import errors

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from anabranch.orchestrator.backend import Capabilities

PATIENCE_S = 60.0
"""How long a backend may take to say what it can do: the embedded one has a model to load."""
_EXTRAS = {"local": "xllamacpp", "sglang": "sglang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A backend, and what became of asking it.

    Attributes:
        capabilities: what it can do; None where it was not asked, or did not answer.
        error: why it cannot answer; None where it can.
        note: why it was not asked.
    """

    url: str
    default: bool
    capabilities: dict[str, Any] | None = None
    error: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is here. `extras` has the version of each optional package, or None."""

    anabranch: str
    python: str
    platform: str
    cpus: int
    extras: dict[str, str | None]
    local_model: str
    sglang_cpu: str
    backends: tuple[Checked, ...]

    @property
    def healthy(self) -> bool:
        """Whether the backend that is used by default can answer."""
        return all(checked.error is None for checked in self.backends if checked.default)


def doctor(
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", help="Look at this server, too; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what runs here, and what can be reached.

    Exit code 1: the server that is used by default cannot answer.
    """
    with errors.told():
        report = asyncio.run(_examine(backend or ()))
        if as_json:
            typer.echo(json.dumps({**asdict(report), "healthy": report.healthy}, ensure_ascii=False, indent=2))
        else:
            _print(report)
        raise typer.Exit(errors.OK if report.healthy else errors.FAILED)


async def _examine(urls: Sequence[str]) -> Report:
    from anabranch.orchestrator.orchestrator import default_backend_url

    default = default_backend_url()
    wanted = dict.fromkeys([default, *urls, *_named_in_environment()])
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_check(url, default=url == default)) for url in wanted]
    return Report(
        anabranch=version("anabranch"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        extras={package: _version(package) for package in _EXTRAS.values()},
        local_model=_local_model(),
        sglang_cpu=_sglang_cpu(),
        backends=tuple(task.result() for task in asked),
    )


def _named_in_environment() -> list[str]:
    return [url for name in ("ANABRANCH_BACKEND", "OPENAI_BASE_URL") if (url := os.environ.get(name))]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _model_file() -> Path | None:
    from anabranch.serving.backends.local.models import cache_folder, find

    return find(cache_folder(os.environ))


def _local_model() -> str:
    from anabranch.serving.backends.local.models import DEFAULT, cache_folder

    if (path := _model_file()) is not None:
        return str(path)
    return f"not fetched yet: {DEFAULT.size / 1e6:.0f} MB, at first use, into {cache_folder(os.environ)}"


def _sglang_cpu() -> str:
    from anabranch.serving.launch import BUILD_COMMAND, cpu_environment

    built = cpu_environment()
    return str(built.root) if built is not None else f"not built: {BUILD_COMMAND}"


async def _check(url: str, *, default: bool) -> Checked:
    """Ask a backend what it can do; whatever goes wrong is an answer, too."""
    from anabranch.orchestrator.registry import open_backend

    try:
        backend = open_backend(url.partition("#")[0])
        if url == "local:" and _model_file() is None:
            # asking it would fetch the model, which nobody asked for
            return Checked(url=url, default=default, note="its model is fetched at first use")
        try:
            async with asyncio.timeout(PATIENCE_S):
                capabilities = await backend.probe()
        finally:
            await backend.aclose()
    except TimeoutError:
        return Checked(url=url, default=default, error=f"did not answer within {PATIENCE_S:.0f} s")
    except Exception as error:  # noqa: BLE001 - a broken backend must not hide the others
        return Checked(url=url, default=default, error=str(error) or type(error).__name__)
    return Checked(url=url, default=default, capabilities=_plain(capabilities))


def _plain(capabilities: Capabilities) -> dict[str, Any]:
    """Capabilities as JSON takes them."""
    found = asdict(capabilities)
    return {
        name: sorted(value)
        if isinstance(value, frozenset)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in found.items()
    }


def _print(report: Report) -> None:
    from anabranch.cli.console import PlainConsole

    console = PlainConsole()
    for part in _parts(report):
        console.print(part)


def _parts(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    facts = _table()
    facts.add_row("anabranch", Text(report.anabranch))
    facts.add_row("Python", Text(report.python))
    facts.add_row("system", Text(f"{report.platform}, {report.cpus} CPUs"))
    for extra, package in _EXTRAS.items():
        found = report.extras[package]
        facts.add_row(
            package, Text(found or f"not installed: pip install 'anabranch[{extra}]'", "" if found else "dim")
        )
    facts.add_row("local model", Text(report.local_model))
    facts.add_row("SGLang on CPU", Text(report.sglang_cpu))
    yield facts
    for checked in report.backends:
        yield Text()
        yield from _backend(checked)


def _table() -> Table:
    """Names and values; long values go on in the next line, as a path that was cut is of no use."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _backend(checked: Checked) -> Iterator[RenderableType]:
    from rich.text import Text

    from anabranch.cli.text import one_line

    mark = ("✓ ", "green") if checked.error is None else ("✗ ", "red")
    note = ("  used by default", "dim") if checked.default else ("", "")
    yield Text.assemble(mark, (checked.url, "bold"), note)
    if checked.error is not None:
        yield Text("  " + one_line(checked.error), "red")
        return
    if checked.note is not None:
        yield Text("  " + checked.note, "dim")
        return
    table = _table()
    for name, value in (checked.capabilities or {}).items():
        table.add_row(Text("  " + name.replace("_", " "), "dim"), Text(one_line(_said(value))))
    yield table


def _said(value: Any) -> str:
    match value:
        case True | False:
            return "yes" if value else "no"
        case None | "" | []:
            return "-"
        case list():
            return ", ".join(map(str, value))
        case _:
            return f"{value:,}" if isinstance(value, int) else str(value)
