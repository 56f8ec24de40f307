"""The command `anabranch`. Each subcommand has a file; what is heavy is imported when a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from anabranch.cli import ask, doctor, errors, launch, record, serve, strategies, trace, train_judge

app = typer.Typer(
    name="anabranch",
    help="One request to a language model as many branches that decode side by side and rejoin.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ask.ask)
app.command()(strategies.strategies)
app.command()(trace.trace)
app.command()(record.record)
app.command()(train_judge.train_judge)
app.command()(serve.serve)
app.command(context_settings={"allow_extra_args": True})(launch.launch)
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from anabranch import __version__

        typer.echo(f"anabranch {__version__}")
        raise typer.Exit


@app.callback()
def _anabranch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(errors.USAGE)


def main() -> None:
    """Run the command line; ends the process with an exit code (`errors` lists them)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run the command line with these arguments; returns the exit code."""
    try:
        with errors.told():
            return app(arguments, standalone_mode=False) or errors.OK
    except typer.Exit as end:
        return end.exit_code
