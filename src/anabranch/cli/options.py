"""The options of `anabranch ask`, by the types that its parameters have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Question = Annotated[str, typer.Argument(help="The question; - reads it from standard input.")]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "-b",
        metavar="URL",
        envvar="ANABRANCH_BACKEND",
        help="Where the model is: sglang://HOST:PORT, http://HOST:PORT/v1, local:PATH.gguf, … "
        "Left out: $OPENAI_BASE_URL, else a small embedded model.",
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy",
        "-s",
        metavar="NAME",
        envvar="ANABRANCH_STRATEGY",
        help="How to branch; `anabranch strategies` lists them.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the strategy; may be repeated."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        envvar="ANABRANCH_MODEL",
        help="The model's name on the server; left out, the server's first one.",
    ),
]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE=URL[#MODEL]",
        help="Another model for a role such as draft or judge; may be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the answer with all figures.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write the run's events here: JSON lines; .gz compresses."),
]
Show = Annotated[
    bool | None,
    typer.Option(
        "--show/--no-show",
        help="The live tree of branches. Left out: shown where the answer goes to a terminal. "
        "It is drawn on standard error where the answer is piped.",
    ),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens of the final answer.")]
Temperature = Annotated[float | None, typer.Option("--temperature", min=0.0, help="Sampling temperature.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed for sampling; each branch derives its own.")]
BudgetTokens = Annotated[
    int | None, typer.Option("--budget-tokens", min=1, help="Most tokens over all branches.")
]
BudgetBranches = Annotated[int | None, typer.Option("--budget-branches", min=1, help="Most branches.")]
Deadline = Annotated[
    float | None,
    typer.Option("--deadline", metavar="SECONDS", help="Answer with the best there is after so long."),
]
