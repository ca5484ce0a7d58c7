"""`roundhouse history`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.complete import model_names
from controller.cli.exits import Exit
from controller.cli.options import ControllerUrl, Json, Kinds, State, controller_url
from controller.cli.output import one_line, say, say_json, say_table, time_words

if TYPE_CHECKING:
    from controller.cli.admin_client import AdminClient
    from controller.schema.admin import JournalEntry

PAGE = 100
"""Entries asked for at a time."""


def history(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model's alone.", autocompletion=model_names)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many entries at most.")] = 50,
    kind: Kinds = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Who or what changed what, and when, the newest first."""
    entries = asyncio.run(_entries(controller_url(controller, state), name, kind or (), limit))
    if as_json:
        say_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
    elif entries:
        rows = [
            (str(each.id), time_words(each.at), each.kind, each.model or "", each.actor, one_line(each.message))
            for each in entries
        ]
        say_table(("ID", "TIME", "KIND", "MODEL", "WHO", "WHAT"), rows)
    else:
        say("nothing is recorded")
    return Exit.DONE


async def _entries(url: str, model: str | None, kinds: Sequence[str], limit: int) -> list[JournalEntry]:
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        return await entries_back(client, model=model, kinds=kinds, limit=limit)


async def entries_back(
    client: AdminClient, *, model: str | None, kinds: Sequence[str], limit: int | None = None, after: int = 0
) -> list[JournalEntry]:
    """Entries from the newest back, page by page: to a number of them (None: no bound), and only those after an id."""
    entries: list[JournalEntry] = []
    before: int | None = None
    while limit is None or len(entries) < limit:
        page_size = PAGE if limit is None else min(PAGE, limit - len(entries))
        page = await client.history(model=model, kinds=kinds, limit=page_size, before=before)
        newer = [entry for entry in page.entries if entry.id > after]
        entries += newer
        before = page.next_before
        if before is None or len(newer) < len(page.entries):
            break
    return entries
