"""`roundhouse events`: show recent events, or follow new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completion import event_kinds, model_names
from controller.cli.exit_codes import ExitCode
from controller.cli.history import entry_words
from controller.cli.options import ControllerUrl, Follow, Json, Kinds, State, checked_name, parse_kinds
from controller.cli.output import print_line, time_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.journal import JournalEntry

RECENT = 50
"""Number of recent events that are shown without --after."""


def events(
    follow: Follow = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            min=0,
            metavar="ID",
            help="Show all entries after the entry with this id, instead of the last ones.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Show only entries of this model.",
            autocompletion=model_names,
            callback=checked_name,
        ),
    ] = None,
    kind: Kinds = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show what happened: state changes, actions, errors.

    Shows recent events, the newest last. With --follow, shows new events as they happen, until Ctrl-C; after a lost
    connection it reconnects and misses none. With --json, one JSON object per line. Exit code 1, without --follow:
    there are no events, and no model of that name is declared. 3: no controller answers, with --follow at the start.
    """
    kinds, url = parse_kinds(kind), controller_url(controller, state)
    if not follow:
        entries = asyncio.run(_recent(url, after, model, kinds or event_kinds("")))
        for entry in entries or ():
            print_entry(entry, as_json)
        return ExitCode.FAILED if entries is None else ExitCode.DONE
    with suppress(KeyboardInterrupt):  # the usual way to end --follow
        asyncio.run(_follow(url, after, model, kinds, as_json))
    return ExitCode.DONE


def print_entry(entry: JournalEntry, as_json: bool) -> None:
    """Print one event to stdout as one line: JSON with `as_json`, else time, id, kind, model, message and, where the
    message does not say it, who did it. Raises BrokenPipeError where the reader of stdout is gone."""
    if as_json:
        print_line(entry.model_dump_json())
        return
    model = f"{entry.model}: " if entry.model else ""
    who = "" if entry.actor in entry.message else f" ({entry.actor})"
    print_line(f"{time_words(entry.at)}  {entry.id}  {entry.kind:<10}  {model}{entry_words(entry)}{who}")


async def _recent(url: str, after: int | None, model: str | None, kinds: Sequence[str]) -> list[JournalEntry] | None:
    """Return recent events, oldest first. None means that no such model is declared."""
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms
    from controller.cli.history import is_unknown, read_entries

    async with AdminClient(url) as client:
        limit = RECENT if after is None else None
        entries = await read_entries(client, model=model, kinds=kinds, limit=limit, after=after or 0)
        if not entries and await is_unknown(client, model):
            return None
    return entries[::-1]


async def _follow(url: str, after: int | None, model: str | None, kinds: Sequence[str], as_json: bool) -> None:
    from controller.cli.admin_client import AdminClient
    from controller.cli.follow import EventFollower
    from controller.cli.history import is_unknown

    async with AdminClient(url) as client:
        await is_unknown(client, model)  # warn only: the model may be declared later
        await EventFollower(client, model, kinds, lambda entry: print_entry(entry, as_json)).follow_events(after)
