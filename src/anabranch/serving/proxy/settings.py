"""Settings of the proxy: from the command line, the environment and a TOML file. Nothing of it changes over the wire."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from anabranch.orchestrator.errors import ConfigurationError, InvalidParameter, UnknownName
from anabranch.orchestrator.orchestrator import default_backend_url
from anabranch.orchestrator.registry import build_strategy, strategies

SEPARATOR = "@"
"""Between a model's name and a strategy's. A `:` belongs to SGLang's LoRA names."""


class Preset(BaseModel):
    """A name for a strategy with parameters and a budget.

        [presets.wide]
        strategy = "skeleton"
        params = { max_points = 5 }
        budget = { tokens = 4000, deadline_s = 60 }
        reasoning_effort = { high = { max_points = 10 } }

    `reasoning_effort` changes parameters by the request's `reasoning_effort`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str
    params: dict[str, Any] = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _buildable(self) -> Self:
        from anabranch.serving.proxy.choice import read_budget

        try:
            for effort in ({}, *self.reasoning_effort.values()):
                build_strategy(self.strategy, {**self.params, **effort})
            read_budget(self.budget)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self


class Settings(BaseModel):
    """What the proxy may do, and how much of it.

    Attributes:
        backend: URL of the model server; None for `default_backend_url()`.
        roles: further models by role, as for `Orchestrator`.
        allowed_backends: other URLs that a request may name; by default none.
        default_strategy: strategy or preset for chat completions that name none; None lets them pass through.
        api_keys: SHA-256 digests (hex) of the keys of which a client must have one; empty: everybody may.
        forward_client_key: plain requests go upstream with the client's own bearer token instead of ours.
        max_inflight: requests served at a time; `max_queued` more wait, further ones get 503.
        max_body: bytes of a request's body.
        deadline_s: seconds for one request, in all; None is unlimited.
        keep_alive_s: seconds of silence after which a stream gets a comment.
        drain_s: seconds that requests under way get when the proxy is told to stop.
        upstream_idle_s: seconds between two reads of a plain reply, its beginning included.
        history: recent runs that are kept to be looked at; 0 for none.
        otel: send OpenTelemetry spans, as the `OTEL_*` variables say.
        log_format: of the access log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str | None = None
    roles: dict[str, str] = Field(default_factory=dict)
    allowed_backends: tuple[str, ...] = ()
    default_strategy: str | None = None
    presets: dict[str, Preset] = Field(default_factory=dict)
    api_keys: frozenset[str] = frozenset()
    forward_client_key: bool = False
    max_inflight: int = Field(default=1024, ge=1)
    max_queued: int = Field(default=1024, ge=0)
    max_body: int = Field(default=64 * 2**20, ge=1)
    deadline_s: float | None = Field(default=None, gt=0)
    keep_alive_s: float = Field(default=1.0, gt=0)
    drain_s: float = Field(default=30.0, ge=0)
    upstream_idle_s: float = Field(default=600.0, gt=0)
    history: int = Field(default=200, ge=0)
    otel: bool = False
    log_format: Literal["json", "text", "none"] = "text"

    @field_validator("presets")
    @classmethod
    def _own_names(cls, presets: dict[str, Preset]) -> dict[str, Preset]:
        for name in presets:
            if name in strategies.names():
                raise ValueError(f"{name!r} is a strategy already; give the preset another name")
            if SEPARATOR in name or not name.strip():
                raise ValueError(f"{name!r}: a preset's name has no {SEPARATOR!r} and is not empty")
        return presets

    @model_validator(mode="after")
    def _default_exists(self) -> Self:
        if self.default_strategy is not None and self.default_strategy not in self.names():
            raise ValueError(str(UnknownName("strategy", self.default_strategy, self.names())))
        return self

    @property
    def server(self) -> str:
        """The URL of the model server."""
        return self.backend or default_backend_url()

    def names(self) -> list[str]:
        """All that a request may name: strategies and presets."""
        return sorted({*strategies.names(), *self.presets})

    @classmethod
    def of(cls, file: Path | None = None, **given: Any) -> Settings:
        """From a TOML file, and what was given besides, which goes before it; None counts as not given.

        Raises:
            InvalidParameter: the file cannot be read, or something in it or beside it is wrong.
        """
        values = {**_read(file), **{name: value for name, value in given.items() if value is not None}}
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "settings"
            raise InvalidParameter(field, first["msg"].removeprefix("Value error, ")) from error


def digest(key: str) -> str:
    """What is kept of an API key."""
    return sha256(key.encode()).hexdigest()


def _read(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameter("config", f"{file}: {error}") from error
