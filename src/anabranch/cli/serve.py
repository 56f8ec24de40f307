"""`anabranch serve`: an OpenAI-compatible proxy in front of a model server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli import errors, options

DEFAULT_PORT = 8000


def serve(
    backend: options.Backend = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; 0.0.0.0 opens it to the network: set keys then."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = DEFAULT_PORT,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings and presets.")
    ] = None,
    default_strategy: Annotated[
        str | None,
        typer.Option(
            "--default-strategy", metavar="NAME", help="For requests that name none; else they pass through."
        ),
    ] = None,
    role: options.Roles = None,
    allow_backend: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-backend", metavar="URL", help="Another server that a request may name; repeatable."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", help="Keys of which clients need one, one a line."),
    ] = None,
    forward_client_key: Annotated[
        bool | None,
        typer.Option(
            "--forward-client-key", help="Plain requests go upstream with the client's own bearer token."
        ),
    ] = None,
    max_inflight: Annotated[
        int | None, typer.Option("--max-inflight", min=1, help="Requests at a time.")
    ] = None,
    max_queued: Annotated[
        int | None, typer.Option("--max-queued", min=0, help="Requests that may wait; further ones get 503.")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option("--max-body", min=1, metavar="BYTES", help="Longest body.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", metavar="SECONDS", help="Longest time for one request.")
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option("--drain", metavar="SECONDS", help="Time that requests get when told to stop."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes; each has its own pages of runs.")
    ] = 1,
    otel: Annotated[
        bool | None, typer.Option("--otel", help="Send OpenTelemetry spans, as set by OTEL_* variables.")
    ] = None,
    log_format: Annotated[
        str, typer.Option("--log-format", help="Of the access log: json, text or none.")
    ] = "text",
) -> None:
    """Serve OpenAI's API: plain requests pass through, MODEL@STRATEGY is decoded as branches."""
    with errors.told():
        try:
            from anabranch.serving.proxy.server import read_keys
            from anabranch.serving.proxy.server import serve as run
        except ModuleNotFoundError as error:
            from anabranch.orchestrator.errors import MissingExtra

            raise MissingExtra("anabranch serve", "proxy") from error
        from anabranch.cli.settings import configure, pairs
        from anabranch.serving.proxy.settings import Settings

        keys = read_keys(api_key_file)
        settings = Settings.of(
            config,
            backend=backend,
            roles=pairs("--role", role or ()) or None,
            default_strategy=default_strategy,
            allowed_backends=allow_backend or None,
            api_keys=keys or None,
            forward_client_key=forward_client_key,
            max_inflight=max_inflight,
            max_queued=max_queued,
            max_body=max_body,
            deadline_s=deadline,
            drain_s=drain,
            otel=otel,
            log_format=log_format,
        )
        configure(settings.server)
        where = f"http://{host}:{port}"
        errors.tell(f"{where}/v1 in front of {settings.server}; runs are shown at {where}/ui")
        raise typer.Exit(run(settings, host=host, port=port, workers=workers))
