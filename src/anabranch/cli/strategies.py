"""`anabranch strategies`: which there are, and what their parameters mean."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli import errors

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a strategy, in words. `default` is None where there is none, or where it is null."""

    name: str
    kind: str
    default: Any
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A strategy in words: its summary is the first line of its documentation, `about` the rest."""

    name: str
    summary: str
    about: str
    parameters: tuple[Parameter, ...]


def strategies(
    name: Annotated[str | None, typer.Argument(help="Tell all about this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the strategies, or tell all about one."""
    with errors.told():
        from anabranch.orchestrator.registry import strategies as registry

        chosen = [describe(name, registry.load(name))] if name is not None else list(_all())
        if as_json:
            told = [asdict(one) for one in chosen]
            typer.echo(json.dumps(told if name is None else told[0], ensure_ascii=False, indent=2))
        else:
            _print(chosen, detailed=name is not None)


def _all() -> Iterator[Described]:
    from anabranch.orchestrator.registry import strategies as registry

    for name in registry.names():
        try:
            yield describe(name, registry.load(name))
        except ImportError as error:
            # somebody's broken package must not hide the others
            yield Described(name=name, summary=f"cannot be loaded: {error}", about="", parameters=())


_WITHIN_PARAGRAPH = re.compile(r"(?<!\n)\n(?![\n\s*-])")
"""A line end that only keeps the source narrow."""


def describe(name: str, strategy: Any) -> Described:
    """What a strategy's class says about itself."""
    lines = (inspect.getdoc(strategy) or "").strip().partition("\n")
    schema = strategy.model_json_schema() if hasattr(strategy, "model_json_schema") else {}
    required = schema.get("required", ())
    return Described(
        name=name,
        summary=lines[0].strip(),
        about=_WITHIN_PARAGRAPH.sub(" ", lines[2].strip()),
        parameters=tuple(
            Parameter(
                name=field,
                kind=_kind(entry, schema.get("$defs", {})),
                default=entry.get("default"),
                required=field in required,
                description=" ".join(entry.get("description", "").split()),
            )
            for field, entry in schema.get("properties", {}).items()
        ),
    )


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _kind(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A JSON schema's type in a few words: `integer ≥ 1`, `text or null`, `one | another`."""
    if reference := entry.get("$ref"):
        return _kind(definitions.get(reference.rpartition("/")[2], {}), definitions)
    if "enum" in entry or "const" in entry:
        return " | ".join(str(value) for value in entry.get("enum", [entry.get("const")]))
    if options := entry.get("anyOf"):
        return " or ".join(_kind(option, definitions) for option in options)
    if entry.get("type") == "array" and "items" in entry:
        return f"list of {_kind(entry['items'], definitions)}"
    bounds = [f"{sign} {entry[key]:g}" for key, sign in _BOUNDS.items() if key in entry]
    kind = {"string": "text"}.get(entry.get("type", "any"), entry.get("type", "any"))
    return " ".join([kind, ", ".join(bounds)]).strip()


def _print(chosen: list[Described], *, detailed: bool) -> None:
    from anabranch.cli.console import PlainConsole

    console = PlainConsole()
    for part in _details(chosen[0]) if detailed else _overview(chosen):
        console.print(part)


def _overview(chosen: list[Described]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3))
    for one in chosen:
        table.add_row(Text(one.name, "bold"), Text(one.summary))
    yield table
    yield Text("\nanabranch strategies NAME tells all about one.", "dim")


def _details(one: Described) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    yield Text.assemble((one.name, "bold"), "  ", one.summary)
    if one.about:
        yield Text("\n" + one.about)
    if not one.parameters:
        yield Text("\nIt has no parameters.", "dim")
        return
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(head, "dim") for head in ("parameter", "type", "default", "")))
    for parameter in one.parameters:
        default = "required" if parameter.required else json.dumps(parameter.default, ensure_ascii=False)
        table.add_row(Text(parameter.name, "bold"), parameter.kind, Text(default), Text(parameter.description))
    yield Text()
    yield table
