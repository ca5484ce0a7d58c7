"""Shell completion of arguments and options. On any error it offers nothing and prints nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from controller.cli.exit_codes import CommandError
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import AdminModel

PATIENCE_S = 1.0
"""Seconds to wait for the controller, because the shell waits for the completion."""


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of declared models that begin with `incomplete`, by the controller that the command line names,
    else by the one that the settings name. Empty where none answers within 1 s. Aliases are not offered."""
    return [row.name for row in _rows(ctx) if row.name.startswith(incomplete)]


def load_fields(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `field=` for each field that a load of the named model may set and that begins with `incomplete`. Empty
    where the command line names no declared model yet, or no controller answers."""
    name = ctx.params.get("name") or next(iter(ctx.args), None)
    row = next((row for row in _rows(ctx) if name in (row.name, *row.aliases)), None)
    fields = row.load_constraints if row is not None else ()
    return [f"{field}=" for field in fields if field.startswith(incomplete)]


def _rows(ctx: typer.Context) -> list[AdminModel]:
    """Return the rows of all models. Empty where no controller answers."""
    import asyncio
    import os

    from controller.cli.admin_client import AdminClient

    async def _ask(url: str) -> list[AdminModel]:
        async with AdminClient(url, PATIENCE_S) as client:
            return (await client.list_models()).models

    # Commands that do not ask the controller themselves have no parameter `controller`.
    url_option, state = (
        ctx.params.get("controller") or os.environ.get("ROUNDHOUSE_CONTROLLER_URL"),
        ctx.params.get("state"),
    )
    try:
        return asyncio.run(_ask(controller_url(url_option, Path(state) if state else None)))
    except CommandError:
        return []


def event_kinds(incomplete: str) -> list[str]:
    """Return the kinds of events that begin with `incomplete`; all of them for an empty text. Asks no controller."""
    from controller.schema.journal import EventKind

    return [kind for kind in get_args(EventKind) if kind.startswith(incomplete)]


def key_scopes(incomplete: str) -> list[str]:
    """Return the scopes of API keys that begin with `incomplete`; all of them for an empty text."""
    from controller.schema.keys import KeyScope

    return [scope for scope in get_args(KeyScope) if scope.startswith(incomplete)]


def tool_names(incomplete: str) -> list[str]:
    """Return the names of built-in tools that begin with `incomplete`; all of them for an empty text."""
    from controller.schema.tools import BUILTIN_TOOLS

    return [name for name in BUILTIN_TOOLS if name.startswith(incomplete)]


def service_tiers(incomplete: str) -> list[str]:
    """Return the service tiers of API keys that begin with `incomplete`; all of them for an empty text."""
    from controller.schema.keys import ServiceTier

    return [tier for tier in get_args(ServiceTier) if tier.startswith(incomplete)]
