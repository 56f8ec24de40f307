"""`anabranch launch`: SGLang with the flags of a profile, in the foreground."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from anabranch.cli import errors

DEFAULT_PORT = 30000
"""SGLang's own."""


def launch(
    context: typer.Context,
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="cpu or gpu.")] = "gpu",
    build: Annotated[
        bool,
        typer.Option("--build", help="Prepare the environment for the profile cpu (minutes, once), and end."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Path or name; for cpu also smollm2 (the default) and tiny."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="The model that drafts, for EAGLE3 and STANDALONE.")
    ] = None,
    speculative: Annotated[
        str | None,
        typer.Option("--speculative", metavar="ALGORITHM", help="EAGLE3, STANDALONE or NGRAM (gpu)."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = DEFAULT_PORT,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="GPUs that share the model.")] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the command line instead of running it.")
    ] = False,
) -> None:
    """Start SGLang, set up for branching; what stands behind -- is passed on to it."""
    with errors.told():
        if build:
            raise typer.Exit(_build(profile))
        from anabranch.serving.launch import command

        line = command(
            profile,
            model=model,
            port=port,
            host=host,
            draft_model=draft_model,
            speculative=speculative,
            tp=tp,
            extra_flags=context.args,
        )
        if print_only:
            _check_if_installed(line)
            typer.echo(shlex.join(line))
        else:
            raise typer.Exit(_run(line, f"{host}:{port}"))


def _build(profile: str) -> int:
    from anabranch.orchestrator.errors import InvalidParameter
    from anabranch.serving.launch import build_cpu_environment

    if profile != "cpu":
        raise InvalidParameter("--build", "is for --profile cpu; for a GPU: pip install 'anabranch[sglang]'")
    environment = build_cpu_environment(progress=errors.tell)
    errors.tell(f"{environment.root} is ready; start it with: anabranch launch --profile cpu")
    return errors.OK


def _check_if_installed(line: Sequence[str]) -> None:
    """A command line for another machine cannot be checked here."""
    from anabranch.orchestrator.errors import MissingExtra
    from anabranch.serving.launch import check_flags

    try:
        check_flags(line)
    except MissingExtra:
        errors.tell("SGLang is not installed here, so its flags were not checked", "warning")


def _run(line: Sequence[str], where: str) -> int:
    from anabranch.serving.launch import ServerProcess, check_flags

    version = check_flags(line)
    errors.tell(f"starting SGLang {version}; once it is ready: anabranch ask --backend sglang://{where} …")
    code = ServerProcess(line, url=f"http://{where}").run()
    if code == errors.INTERRUPTED:
        return code
    errors.tell(f"the server ended with code {code}", "error" if code else "")
    return errors.FAILED if code else errors.OK
