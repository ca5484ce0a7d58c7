"""`roundhouse events`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completion import event_kinds, model_names
from controller.cli.exit_codes import Exit
from controller.cli.history import what_words
from controller.cli.options import ControllerUrl, Follow, Json, Kinds, State, kinds_of, named
from controller.cli.output import say, time_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import JournalEntry

RECENT = 50


def events(
    follow: Follow = False,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="ID", help="Only those after this one.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Only this model's.", autocompletion=model_names, callback=named),
    ] = None,
    kind: Kinds = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """What happens: state changes, actions, errors.

    The recent ones that are kept, the newest last; with --follow the new ones as they come, until Ctrl-C. A connection
    that breaks is made again, and nothing is lost. With --json, one JSON object per line.
    """
    kinds, url = kinds_of(kind), controller_url(controller, state)
    if not follow:
        entries = asyncio.run(_recent(url, after, model, kinds or event_kinds("")))
        for entry in entries or ():
            say_entry(entry, as_json)
        return Exit.FAILED if entries is None else Exit.DONE
    with suppress(KeyboardInterrupt):  # the only way to end it
        asyncio.run(_follow(url, after, model, kinds, as_json))
    return Exit.DONE


def say_entry(entry: JournalEntry, as_json: bool) -> None:
    """One entry, one line."""
    if as_json:
        say(entry.model_dump_json())
        return
    model = f"{entry.model}: " if entry.model else ""
    who = "" if entry.actor in entry.message else f" ({entry.actor})"
    say(f"{time_words(entry.at)}  {entry.id}  {entry.kind:<10}  {model}{what_words(entry)}{who}")


async def _recent(url: str, after: int | None, model: str | None, kinds: Sequence[str]) -> list[JournalEntry] | None:
    """The oldest first. None: there is no such model."""
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms
    from controller.cli.history import entries_back, is_unknown

    async with AdminClient(url) as client:
        limit = RECENT if after is None else None
        entries = await entries_back(client, model=model, kinds=kinds, limit=limit, after=after or 0)
        if not entries and await is_unknown(client, model):
            return None
    return entries[::-1]


async def _follow(url: str, after: int | None, model: str | None, kinds: Sequence[str], as_json: bool) -> None:
    from controller.cli.admin_client import AdminClient
    from controller.cli.follow import Follower
    from controller.cli.history import is_unknown

    async with AdminClient(url) as client:
        await is_unknown(client, model)  # it may come
        await Follower(client, model, kinds, lambda entry: say_entry(entry, as_json)).run(after)
