"""What the shell offers while a command line is typed. Whatever goes wrong, it offers nothing and says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from controller.cli.exit_codes import CommandError
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import AdminModel

PATIENCE_S = 1.0
"""A shell waits for the answer."""


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of declared models, by the controller that the line names so far."""
    return [row.name for row in _rows(ctx) if row.name.startswith(incomplete)]


def load_fields(ctx: typer.Context, incomplete: str) -> list[str]:
    """What a load of the model that the line names may set, each with the `=` that its value follows."""
    name = ctx.params.get("name") or next(iter(ctx.args), None)
    row = next((row for row in _rows(ctx) if name in (row.name, *row.aliases)), None)
    fields = row.load_constraints if row is not None else ()
    return [f"{field}=" for field in fields if field.startswith(incomplete)]


def _rows(ctx: typer.Context) -> list[AdminModel]:
    """Of every model; none where nobody answers."""
    import asyncio
    import os

    from controller.cli.admin_client import AdminClient

    async def _ask(url: str) -> list[AdminModel]:
        async with AdminClient(url, PATIENCE_S) as client:
            return (await client.list_models()).models

    # Not every command that names models asks the controller itself.
    url_option, state = (
        ctx.params.get("controller") or os.environ.get("ROUNDHOUSE_CONTROLLER_URL"),
        ctx.params.get("state"),
    )
    try:
        return asyncio.run(_ask(controller_url(url_option, Path(state) if state else None)))
    except CommandError:
        return []


def event_kinds(incomplete: str) -> list[str]:
    """Kinds of events."""
    from controller.schema.admin import EventKind

    return [kind for kind in get_args(EventKind) if kind.startswith(incomplete)]


def key_scopes(incomplete: str) -> list[str]:
    """What a key may open."""
    from controller.schema.keys import KeyScope

    return [scope for scope in get_args(KeyScope) if scope.startswith(incomplete)]


def service_tiers(incomplete: str) -> list[str]:
    """Tiers that a key may have."""
    from controller.schema.keys import ServiceTier

    return [tier for tier in get_args(ServiceTier) if tier.startswith(incomplete)]
