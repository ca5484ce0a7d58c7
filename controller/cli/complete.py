"""What the shell offers while a command line is typed. Whatever goes wrong, it offers nothing and says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import typer

from controller.cli.exits import CommandError

PATIENCE_S = 1.0
"""A shell waits for the answer."""


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of declared models, by the controller that the line names so far."""
    import asyncio

    from controller.cli.admin_client import AdminClient
    from controller.cli.options import controller_url

    async def _ask(url: str) -> list[str]:
        async with AdminClient(url, PATIENCE_S) as client:
            return [row.name for row in (await client.models()).models]

    state = ctx.params.get("state")
    try:
        names = asyncio.run(_ask(controller_url(ctx.params.get("controller"), Path(state) if state else None)))
    except CommandError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def event_kinds(incomplete: str) -> list[str]:
    """Kinds of events."""
    from controller.schema.admin import EventKind

    return [kind for kind in get_args(EventKind) if kind.startswith(incomplete)]
