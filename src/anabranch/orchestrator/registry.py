"""Strategies and backends by name, found through entry points, so that anybody's package can add one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from anabranch.orchestrator.errors import InvalidParameter, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anabranch.orchestrator.backend import Backend
    from anabranch.orchestrator.strategy import Strategy


class Registry:
    """What the entry points of one group name."""

    def __init__(self, group: str, kind: str) -> None:
        self._group, self._kind = group, kind

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._points)

    def load(self, name: str) -> Any:
        """The object under this name. Raises UnknownName."""
        point = self._points.get(name)
        if point is None:
            raise UnknownName(self._kind, name, self.names())
        return point.load()


strategies = Registry("anabranch.strategies", "strategy")
backends = Registry("anabranch.backends", "backend")


def open_backend(url: str) -> Backend:
    """The backend for a URL such as `sglang://localhost:30000`; its scheme says which.

    Raises:
        UnknownName: no backend is registered for the scheme.
        InvalidParameter: the URL has no scheme.
    """
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise InvalidParameter("backend", f"{url!r} has no scheme; write for instance sglang://localhost:30000")
    factory = cast("Callable[[str], Backend]", backends.load(scheme.lower()))
    return factory(url)


def build_strategy(strategy: str | Strategy, params: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of this name with these parameters; an object is taken as it is.

    Raises:
        UnknownName: no such strategy.
        InvalidParameter: a parameter that the strategy does not have, or cannot take.
    """
    if not isinstance(strategy, str):
        if params:
            raise InvalidParameter(
                "params", "goes with a strategy's name; an object has its parameters already"
            )
        return strategy
    factory = strategies.load(strategy)
    try:
        return cast("Strategy", factory(**(params or {})))
    except (TypeError, ValueError) as error:
        raise _invalid(strategy, factory, error) from error


def _invalid(name: str, factory: Any, error: Exception) -> InvalidParameter:
    problems = error.errors() if hasattr(error, "errors") else []
    if not problems:
        return InvalidParameter(name, str(error))
    first = problems[0]
    field = ".".join(str(part) for part in first["loc"]) or "params"
    known = ", ".join(getattr(factory, "model_fields", ())) or "none"
    hint = f"; parameters of {name}: {known}" if first["type"] == "extra_forbidden" else ""
    return InvalidParameter(f"{name}.{field}", f"{first['msg']}{hint}")
