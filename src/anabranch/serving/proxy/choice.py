"""Which strategy a request asks for, with which parameters. Pure.

Asked for by the body's `anabranch` object, by the model's name (`MODEL@strategy`), by a header, or by the proxy's
default, the first of these that says something. What stands in a prompt never counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from anabranch.orchestrator.budget import Budget
from anabranch.orchestrator.errors import InvalidParameter, UnknownName
from anabranch.orchestrator.registry import build_strategy
from anabranch.orchestrator.strategy import Strategy
from anabranch.serving.proxy.errors import ProxyError, bad_request
from anabranch.serving.proxy.requests import PLAIN
from anabranch.serving.proxy.settings import SEPARATOR, Settings

HEADER = "x-anabranch-strategy"
EXTENSION = "anabranch"
"""The body's object for what OpenAI's API has no field for."""
_KNOWN = ("backend", "budget", "params", "progress", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a request is to be answered.

    Attributes:
        name: of the strategy or preset, as the request had it; `none` to pass it through.
        model: for the model server: without the strategy's name.
        progress: what the branches do is told as reasoning until the answer begins.
        backend: URL of another model server than the proxy's own.
        altered: the body has something that is not for the model server.
    """

    name: str
    model: str | None
    params: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = False
    backend: str | None = None
    altered: bool = False

    @property
    def plain(self) -> bool:
        """Whether the request passes through."""
        return self.name == PLAIN


def choose(body: Mapping[str, Any], header: str | None, settings: Settings) -> Choice:
    """Read a request's choice.

    Raises:
        ProxyError: it names what there is not; a 400 that lists what there is.
    """
    extension = _extension(body)
    model, suffix = _split(body.get("model"), settings)
    name = extension.get("strategy") or suffix or header or settings.default_strategy or PLAIN
    if name != PLAIN and name not in settings.names():
        raise unknown_strategy(str(name), settings)
    if name == PLAIN and (extension.get("params") or extension.get("budget")):
        raise bad_request(
            f"{EXTENSION}.params and .budget go with a strategy: name one", param=f"{EXTENSION}.strategy"
        )
    return Choice(
        name=name,
        model=model,
        params=extension.get("params") or {},
        budget=extension.get("budget") or {},
        progress=bool(extension.get("progress")),
        backend=extension.get("backend"),
        altered=EXTENSION in body or suffix is not None,
    )


def unknown_strategy(name: str, settings: Settings) -> ProxyError:
    """A 400 that lists the strategies there are."""
    known = [*settings.names(), PLAIN]
    return bad_request(str(UnknownName("strategy", name, known)), param="strategy", code="unknown_strategy")


def build(choice: Choice, settings: Settings, *, effort: object = None) -> tuple[Strategy, Budget]:
    """The strategy and the budget of a choice.

    Args:
        effort: the request's `reasoning_effort`; a preset may widen its fan-out by it.

    Raises:
        ProxyError, InvalidParameter: a parameter that the strategy does not have, or cannot take from a client.
    """
    preset = settings.presets.get(choice.name)
    name, params, budget = choice.name, dict(choice.params), dict(choice.budget)
    _refuse_local(choice)
    if preset is not None:
        widened = preset.reasoning_effort.get(str(effort), {})
        name, params, budget = (
            preset.strategy,
            {**preset.params, **widened, **params},
            {**preset.budget, **budget},
        )
    strategy = build_strategy(name, params)
    return strategy, read_budget(budget)


def read_budget(given: Mapping[str, Any]) -> Budget:
    """A budget from JSON or TOML. Raises InvalidParameter that names the key."""
    known = [each.name for each in fields(Budget)]
    for name, value in given.items():
        if name not in known:
            raise InvalidParameter(f"budget.{name}", f"unknown; known: {', '.join(known)}")
        number = int | float if name == "deadline_s" else int
        if value is not None and (isinstance(value, bool) or not isinstance(value, number)):
            raise InvalidParameter(f"budget.{name}", f"must be a number, got {value!r}")
    return Budget(**given)


def _extension(body: Mapping[str, Any]) -> Mapping[str, Any]:
    extension = body.get(EXTENSION)
    if extension is None:
        return {}
    if not isinstance(extension, Mapping):
        raise bad_request(f"{EXTENSION} must be an object, with: {', '.join(_KNOWN)}", param=EXTENSION)
    for name, value in extension.items():
        if name not in _KNOWN:
            raise bad_request(
                f"{EXTENSION}.{name}: unknown; known: {', '.join(_KNOWN)}", param=f"{EXTENSION}.{name}"
            )
        wanted = {"params": Mapping, "budget": Mapping, "progress": bool}.get(name, str)
        if value is not None and not isinstance(value, wanted):
            kind = {Mapping: "an object", bool: "true or false", str: "text"}[wanted]
            raise bad_request(f"{EXTENSION}.{name} must be {kind}", param=f"{EXTENSION}.{name}")
    return extension


def _split(model: object, settings: Settings) -> tuple[str | None, str | None]:
    """A model's name and the strategy behind it: only where that is one, since a model's own name may have an @."""
    if not isinstance(model, str):
        return None, None
    bare, separator, suffix = model.rpartition(SEPARATOR)
    if separator and suffix in (*settings.names(), PLAIN):
        return bare or None, suffix
    return model, None


def _refuse_local(choice: Choice) -> None:
    """Parameters that name files are for whoever runs the proxy, not for its clients."""
    for name in ("judge", "prompts"):
        if name in choice.params:
            raise bad_request(
                f"params.{name} names files of the server: set it in a preset",
                param=f"{EXTENSION}.params.{name}",
            )
