"""Warnings about names of models that are valid and hide a route of the gateway. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.schema.desired import Definition

ROUTE_ENDINGS: Final = ("/status", "/benchmark")
"""What follows a model's name in paths of the gateway below `/v1/models/`."""


def find_name_warnings(definitions: Mapping[str, Definition]) -> list[tuple[str, str]]:
    """Return a warning for each name and alias that ends with `/status` or `/benchmark`, as routes of another model do:
    pairs of the model's name and the warning, in order of model names; empty: there is none."""
    return [
        (model, _describe_hidden_route(name, ending))
        for model, definition in sorted(definitions.items())
        for name in (model, *definition.aliases)
        for ending in ROUTE_ENDINGS
        if name.endswith(ending)
    ]


def _describe_hidden_route(name: str, ending: str) -> str:
    other = name.removesuffix(ending)
    return (
        f"`{name}` ends with `{ending}`, so `GET /v1/models/{name}` answers this model, and a model `{other}` could "
        f"not be asked for its {ending[1:]} there: choose another name"
    )
