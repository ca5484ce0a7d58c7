"""`roundhouse history`: show who or what changed what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completion import model_names
from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, Kinds, State, checked_name, parse_kinds
from controller.cli.output import one_line, plain_words, print_error, print_json, print_line, print_table, time_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.cli.admin_client import AdminClient
    from controller.schema.journal import JournalEntry

PAGE = 100
"""Number of entries per request."""


def history(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show only entries of this model.", autocompletion=model_names, callback=checked_name
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of entries.")] = 50,
    kind: Kinds = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show who or what changed what, and when, the newest first.

    Exit code 1: there are no entries, and no model of that name is declared. 3: no controller answers.
    """
    kinds = parse_kinds(kind)
    entries = asyncio.run(_entries(controller_url(controller, state), name, kinds, limit))
    if as_json:
        print_json({"entries": [entry.model_dump(mode="json") for entry in entries or ()]})
    elif entries:
        rows = [
            (str(each.id), time_words(each.at), each.kind, each.model or "", each.actor, entry_words(each))
            for each in entries
        ]
        print_table(("ID", "TIME", "KIND", "MODEL", "WHO", "WHAT"), rows)
    elif entries is not None:
        print_line("nothing is recorded")
    return ExitCode.FAILED if entries is None else ExitCode.DONE


def entry_words(entry: JournalEntry) -> str:
    """Return the message of an entry in one line. For an operator's load, the fields that the message does not name are
    added with their values, as `, with field=value`."""
    message, params, replicas = one_line(entry.message), entry.details.get("params"), entry.details.get("replicas")
    if entry.kind != "statement" or entry.details.get("action") != "load":
        return message
    values = {**(params if isinstance(params, dict) else {}), "replicas": replicas}
    missing_fields = [
        f"{field}={'null' if value is None else plain_words(value)}"
        for field, value in values.items()
        if field not in message and (field, value) != ("replicas", None)
    ]
    return f"{message}, with {', '.join(missing_fields)}" if missing_fields else message


async def _entries(url: str, model: str | None, kinds: Sequence[str], limit: int) -> list[JournalEntry] | None:
    """Return entries, newest first. None means that no such model is declared."""
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        entries = await read_entries(client, model=model, kinds=kinds, limit=limit)
        return None if not entries and await is_unknown(client, model) else entries


async def is_unknown(client: AdminClient, model: str | None) -> bool:
    """Return whether no model of this name or alias is declared, and print an error then. `model` None, no name to look
    for, returns False without a request. Raises NoControllerError if no controller answers, and CommandError for any
    other failure."""
    if model is None or await client.declares_model(model):
        return False
    print_error(f"no model {model} is declared")
    return True


async def read_entries(
    client: AdminClient, *, model: str | None, kinds: Sequence[str], limit: int | None = None, after: int = 0
) -> list[JournalEntry]:
    """Return entries of the history, newest first, read page by page.

    `limit` is the maximum number of entries; None means no limit. Only entries with an id greater than `after`. `model`
    None: of all models; empty `kinds`: the kinds that change something. Raises NoControllerError if no controller
    answers, RequestRefusedError if it refuses, and CommandError for any other failure.
    """
    entries: list[JournalEntry] = []
    before_id: int | None = None
    while limit is None or len(entries) < limit:
        page_size = PAGE if limit is None else min(PAGE, limit - len(entries))
        page = await client.read_history(model=model, kinds=kinds, limit=page_size, before=before_id)
        newer_entries = [entry for entry in page.entries if entry.id > after]
        entries += newer_entries
        before_id = page.next_before
        if before_id is None or len(newer_entries) < len(page.entries):
            break
    return entries
