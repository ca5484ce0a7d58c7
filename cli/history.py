"""`roundhouse events`, `history` and `logs`: what has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import (
    ControllerUrl,
    Follow,
    Json,
    Kinds,
    ModelArgument,
    State,
    checked_name,
    controller_url,
    event_kinds,
    model_names,
    parse_kinds,
)
from cli.output import (
    ExitCode,
    one_line,
    plain_words,
    print_error,
    print_json,
    print_json_line,
    print_line,
    print_piece,
    print_table,
    time_words,
)

if TYPE_CHECKING:
    from cli.admin_client import AdminClient
    from contract.journal import JournalEntry


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
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        limit = RECENT if after is None else None
        entries = await read_entries(client, model=model, kinds=kinds, limit=limit, after=after or 0)
        if not entries and await is_unknown(client, model):
            return None
    return entries[::-1]


async def _follow(url: str, after: int | None, model: str | None, kinds: Sequence[str], as_json: bool) -> None:
    from cli.admin_client import AdminClient
    from cli.following import EventFollower

    async with AdminClient(url) as client:
        await is_unknown(client, model)  # warn only: the model may be declared later
        await EventFollower(client, model, kinds, lambda entry: print_entry(entry, as_json)).follow_events(after)


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
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        entries = await read_entries(client, model=model, kinds=kinds, limit=limit)
        return None if not entries and await is_unknown(client, model) else entries


async def is_unknown(client: AdminClient, model: str | None) -> bool:
    """Return whether no model of this name or alias is declared, and print an error then. False also for None (there is
    no request then), and where the controller refuses for another reason. Raises NoControllerError if no controller
    answers, and CommandError if its answer cannot be read."""
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


def logs(
    name: ModelArgument,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica", metavar="R", help="Show the log of this replica only; `status --json` lists the names."
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=0, help="Number of last lines of each engine.")] = 100,
    follow: Follow = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show the last log lines of a model's engines.

    Of the running ones, or of the one that ended last where none runs. With --follow, also new lines, until Ctrl-C.
    With --json, one JSON object per line. Exit code 0: also where nothing was written yet. 1: there is no such model or
    replica. 3: no controller answers.
    """
    try:
        has_text = asyncio.run(_logs(controller_url(controller, state), name, replica, lines, follow, as_json))
    except KeyboardInterrupt:
        if not follow:
            return ExitCode.INTERRUPTED
        return ExitCode.DONE
    if lines and not has_text:
        subject_words = f"no engine of {name} has" if replica is None else f"{replica} has not"
        print_error(f"no log: {subject_words} written anything yet")
    return ExitCode.DONE


async def _logs(url: str, name: str, replica: str | None, lines: int, follow: bool, as_json: bool) -> bool:
    """Print the log. Returns whether there was any text."""
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    partial_line, has_text = "", False
    async with AdminClient(url) as client:
        pieces = client.read_logs(name, replica=replica, lines=lines, follow=follow)
        async with aclosing(pieces):
            try:
                async for piece in pieces:
                    has_text |= bool(piece)
                    if not as_json:
                        print_piece(piece)
                        continue
                    *full_lines, partial_line = (partial_line + piece).split("\n")
                    for line in full_lines:
                        print_json_line({"line": line})
            finally:  # Ctrl-C and a lost connection end the log within a line, too
                if partial_line:
                    print_json_line({"line": partial_line})
    return has_text
