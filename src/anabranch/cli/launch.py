"""`anabranch launch`: SGLang with the flags of a profile, in the foreground."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli import errors
from anabranch.orchestrator.errors import InvalidParameter

if TYPE_CHECKING:
    from anabranch.serving.launch import Planned

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
    draft_server: Annotated[
        str | None,
        typer.Option(
            "--draft-server",
            metavar="MODEL",
            help="Start this model too, at the next port: the draft of lookahead.",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N,…",
            help="With --draft-server: the last one is the draft's, one alone is shared.",
        ),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the command line instead of running it.")
    ] = False,
) -> None:
    """Start SGLang, set up for branching; what stands behind -- is passed on to it."""
    with errors.told():
        if build:
            raise typer.Exit(_build(profile))
        common = {
            "model": model,
            "port": port,
            "host": host,
            "draft_model": draft_model,
            "speculative": speculative,
            "extra_flags": context.args,
        }
        if draft_server is None and gpus is not None:
            raise InvalidParameter("--gpus", "goes with --draft-server; for one server say --tp")
        planned = (
            _one(profile, common, tp) if draft_server is None else _two(profile, common, tp, draft_server, gpus)
        )
        if print_only:
            _print(planned)
        else:
            raise typer.Exit(_run(planned))


def _one(profile: str, common: Mapping[str, Any], tp: int | None) -> Sequence[Planned]:
    from anabranch.serving.launch import Planned, command

    where = f"{common['host']}:{common['port']}"
    return [Planned(role="server", command=command(profile, **common, tp=tp), where=where)]


def _two(
    profile: str, common: Mapping[str, Any], tp: int | None, draft_server: str, gpus: str | None
) -> Sequence[Planned]:
    from anabranch.serving.launch import pair

    if tp is not None:
        raise InvalidParameter(
            "--tp", "with --draft-server say which GPUs: --gpus 0,1,2 spreads the target over 0 and 1"
        )
    return pair(profile, **common, draft_server=draft_server, gpus=_numbers(gpus))


def _numbers(gpus: str | None) -> list[int]:
    words = [word.strip() for word in gpus.split(",")] if gpus else []
    if not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidParameter("--gpus", f"needs numbers with commas between, such as 0,1; got {gpus!r}")
    return [int(word) for word in words]


def _build(profile: str) -> int:
    from anabranch.serving.launch import build_cpu_environment

    if profile != "cpu":
        raise InvalidParameter("--build", "is for --profile cpu; for a GPU: pip install 'anabranch[sglang]'")
    environment = build_cpu_environment(progress=errors.tell)
    errors.tell(f"{environment.root} is ready; start it with: anabranch launch --profile cpu")
    return errors.OK


def _print(planned: Sequence[Planned]) -> None:
    """The command lines, one for each server; comments say what goes with several."""
    _check_if_installed(planned[0].command)  # the others' flags are among its own
    if len(planned) == 1:
        typer.echo(shlex.join(planned[0].command))
        return
    for each in planned:
        typer.echo(
            f"# {each.role}, at {each.where}{'' if each is planned[0] else '; start it once the target is ready'}"
        )
        typer.echo(
            " ".join(
                [*(f"{name}={value}" for name, value in each.environment.items()), shlex.join(each.command)]
            )
        )
    typer.echo(f"# {_how_to_ask(planned)}")


def _how_to_ask(planned: Sequence[Planned]) -> str:
    target, *others = planned
    roles = "".join(f" --role {each.role}=sglang://{each.where}" for each in others)
    return (
        f"anabranch ask --backend sglang://{target.where}{roles}{' --strategy lookahead' if others else ''} …"
    )


def _check_if_installed(line: Sequence[str]) -> None:
    """A command line for another machine cannot be checked here."""
    from anabranch.orchestrator.errors import MissingExtra
    from anabranch.serving.launch import check_flags

    try:
        check_flags(line)
    except MissingExtra:
        errors.tell("SGLang is not installed here, so its flags were not checked", "warning")


def _run(planned: Sequence[Planned]) -> int:
    from anabranch.serving.launch import ServerProcess, check_flags, run_all

    version = check_flags(planned[0].command)
    errors.tell(f"starting SGLang {version}; once it is ready: {_how_to_ask(planned)}")
    if len(planned) == 1:
        ended, code = "server", ServerProcess(planned[0].command, url=f"http://{planned[0].where}").run()
    else:
        ended, code = run_all(planned)
    if code == errors.INTERRUPTED:
        return code
    errors.tell(f"the {ended} ended with code {code}", "error" if code else "")
    return errors.FAILED if code or len(planned) > 1 else errors.OK
