"""How tokens are drawn and what they are allowed to be: values that travel from a request to a server unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack


class SamplingChanges(TypedDict, total=False):
    """The keyword arguments of `Sampling.but`."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; None leaves the choice to the server.

    `extra` holds what only one kind of server knows; it is sent as it stands.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Unpack[SamplingChanges]) -> Sampling:
        """A copy with some parameters replaced."""
        return replace(self, **changes)

    def or_default(self, **defaults: Unpack[SamplingChanges]) -> Sampling:
        """A copy in which parameters that nobody set take these values."""
        unset = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, **unset)  # type: ignore[arg-type]

    def given(self) -> dict[str, Any]:
        """The parameters that were set, by name, without `extra`."""
        names = SamplingChanges.__annotations__
        return {name: value for name in names if name != "extra" and (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A grammar that the output must match: constrained decoding.

    Attributes:
        kind: `json_schema` (`source` is JSON text), `regex` or `ebnf`.
    """

    kind: Literal["json_schema", "regex", "ebnf"]
    source: str
