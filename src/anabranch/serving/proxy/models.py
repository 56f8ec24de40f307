"""The list of models: the server's own, and each of them with each strategy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.serving.proxy.errors import ProxyError
from anabranch.serving.proxy.settings import SEPARATOR


def with_virtual(listed: Mapping[str, Any], strategies: Sequence[str]) -> dict[str, Any]:
    """The list with `MODEL@strategy` for each model of the server's and each strategy."""
    own = [model for model in listed.get("data", ()) if isinstance(model, Mapping) and "id" in model]
    virtual = [_virtual(model, strategy) for model in own for strategy in strategies]
    return {**listed, "object": "list", "data": [*own, *virtual]}


def one_model(listed: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The model of this name. Raises ProxyError."""
    for model in listed["data"]:
        if model["id"] == name:
            found: Mapping[str, Any] = model
            return found
    known = ", ".join(model["id"] for model in listed["data"])
    raise ProxyError(
        status=404, message=f"no model {name!r}; there are: {known}", param="model", code="model_not_found"
    )


def _virtual(model: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    return {
        "id": f"{model['id']}{SEPARATOR}{strategy}",
        "object": "model",
        "created": model.get("created", 0),
        "owned_by": "anabranch",
        "parent": model["id"],
        "strategy": strategy,
    }
