"""`roundhouse top`: show a live table of the models."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ControllerUrl, Json, State, controller_url, own_gateway_url, read_settings
from cli.output import STATE_COLOURS, CommandError, ExitCode, print_json, print_line, print_table, table_of
from common.shared_token import read_token

if TYPE_CHECKING:
    from rich.console import Group

    from cli.admin_client import AdminClient
    from cli.top_source import TopSource
    from cli.top_view import TopView


def top(
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=3600, metavar="SECONDS", help="Time between two updates of the table."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and exit. Without a terminal this is the default.")
    ] = False,
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            metavar="URL",
            help="URL of the gateway whose metrics show tokens per second; default: host and port of `up`.",
        ),
    ] = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show a live table of the models.

    The table has state, replicas, requests, tokens per second and memory of each model, the busiest first. `q` or
    Ctrl-C ends it. Tokens are counted when a request ends; where no gateway can be reached, the column shows `-`. One
    table (--once, --json) takes one interval, because its tokens are counted over it. Exit code 3: no controller
    answers at the start.
    """
    url = controller_url(controller, state)
    if once or as_json or not sys.stdout.isatty():
        view = asyncio.run(_once(url, gateway, interval))
        if as_json:
            print_json(view.as_json())
        else:
            _print(view)
        return ExitCode.DONE
    with suppress(KeyboardInterrupt):
        asyncio.run(_live(url, gateway, interval))
    return ExitCode.DONE


def _open_source(client: AdminClient, gateway: str | None) -> TopSource:
    from cli.top_source import TopSource

    url = gateway or own_gateway_url(read_settings())
    return TopSource(client, url, _read_metrics_key(os.environ), verifies=gateway is not None)


def _read_metrics_key(environ: Mapping[str, str]) -> str | None:
    """Return what opens a gateway's metrics: its own key, else one with the scope `admin`; None: neither is set."""
    path = environ.get("ROUNDHOUSE_METRICS_KEY_FILE")
    own_key = environ.get("ROUNDHOUSE_METRICS_KEY") or (read_token(Path(path)) if path else None)
    return own_key or environ.get("ROUNDHOUSE_KEY") or None


async def _once(url: str, gateway: str | None, interval_s: float) -> TopView:
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client, _open_source(client, gateway) as source:
        if await source.read_first_counters():
            await asyncio.sleep(interval_s)
        return await source.read_view()


async def _live(url: str, gateway: str | None, interval_s: float) -> None:
    """Show the live table until `q` is typed or the task is cancelled.

    While the controller does not answer, the last table stays.
    """
    from rich.live import Live

    from cli.admin_client import AdminClient
    from cli.top_source import watch_quit_key

    quit_event = asyncio.Event()
    async with AdminClient(url) as client, _open_source(client, gateway) as source:
        view, note = await source.read_view(), ""
        with watch_quit_key(quit_event) as has_key:
            hint = "q quits" if has_key else ""
            with Live(_screen(view, note, hint), screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_screen(view, note, hint), refresh=True)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(quit_event.wait(), interval_s)
                        break
                    view, note = await _next(source, view)


async def _next(source: TopSource, view: TopView) -> tuple[TopView, str]:
    """Return the next view, or the last view and the reason why there is no newer one."""
    try:
        return await source.read_view(), ""
    except CommandError as error:
        return view, str(error)


def _screen(view: TopView, note: str, hint: str) -> Group:
    from rich.console import Group
    from rich.text import Text

    from cli.top_view import COLUMNS

    lines = [Text(line) for line in view.gpu_lines()]
    lines += [Text(line, style="red") for line in (*view.trouble_lines(), note) if line]
    notes = [Text(line, style="dim") for line in (*view.note_lines(), hint)]
    return Group(*lines, table_of(COLUMNS, view.rows(), STATE_COLOURS), *notes)


def _print(view: TopView) -> None:
    from cli.top_view import COLUMNS

    for line in (*view.gpu_lines(), *view.trouble_lines()):
        print_line(line)
    if view.listing.models:
        print_table(COLUMNS, view.rows(), STATE_COLOURS)
        for line in view.note_lines():
            print_line(line)
    else:
        print_line("no models are declared")
