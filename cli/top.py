"""`roundhouse top`: show a live table of the models."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from cli.options import ControllerUrl, GatewayUrl, Json, State, controller_url
from cli.output import (
    STATE_COLOURS,
    CommandError,
    ExitCode,
    is_terminal,
    print_json,
    print_line,
    print_table,
    table_of,
)
from common.shared_token import read_token

if TYPE_CHECKING:
    from rich.console import Group

    from cli.admin_client import AdminClient
    from cli.top_view import TokenSample, TopView


def top(
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=3600, metavar="SECONDS", help="Time between two updates of the table."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and exit. Without a terminal this is the default.")
    ] = False,
    gateway: GatewayUrl = None,
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
    opened = _open_source(controller_url(controller, state), gateway, state)
    if once or as_json or not is_terminal(sys.stdout):
        view = asyncio.run(_once(opened, interval))
        if as_json:
            print_json(view.as_json())
        else:
            _print(view)
        return ExitCode.DONE
    with suppress(KeyboardInterrupt):
        asyncio.run(_live(opened, interval))
    return ExitCode.DONE


def _read_metrics_key(environ: Mapping[str, str]) -> str | None:
    """Return what opens a gateway's metrics: its own key, else one with the scope `admin`; None: neither is set."""
    path = environ.get("ROUNDHOUSE_METRICS_KEY_FILE")
    own_key = environ.get("ROUNDHOUSE_METRICS_KEY") or (read_token(Path(path)) if path else None)
    return own_key or environ.get("ROUNDHOUSE_KEY") or None


@asynccontextmanager
async def _open_source(url: str, gateway: str | None, state: Path | None) -> AsyncIterator[TopSource]:
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms
    from cli.gateway_client import find_gateway

    address = await find_gateway(gateway, url, state)
    async with (
        AdminClient(url) as client,
        TopSource(client, address.url, _read_metrics_key(os.environ), verifies=address.verifies) as source,
    ):
        yield source


async def _once(opened: AbstractAsyncContextManager[TopSource], interval_s: float) -> TopView:
    async with opened as source:
        if await source.read_first_counters():
            await asyncio.sleep(interval_s)
        return await source.read_view()


async def _live(opened: AbstractAsyncContextManager[TopSource], interval_s: float) -> None:
    """Show the live table until `q` is typed or the task is cancelled.

    While the controller does not answer, the last table stays.
    """
    from rich.live import Live

    quit_event = asyncio.Event()
    async with opened as source:
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


QUIT_KEYS: Final = frozenset(b"qQ")


@contextmanager
def watch_quit_key(quit_event: asyncio.Event) -> Iterator[bool]:
    """Context manager that sets `quit_event` when `q` or `Q` is typed, inside the context. Yields whether stdin is a
    terminal at which somebody can type; if not, nothing is watched. Needs a running event loop.

    Inside the context, the terminal delivers keys without Enter and does not show them; its modes are restored at the
    end. Ctrl-C works as usual.
    """
    if not _is_typed_at():
        yield False
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read_keys() -> None:
        try:
            keys = os.read(descriptor, 1024)
        except OSError:
            keys = b""
        if not keys:  # the terminal is gone
            loop.remove_reader(descriptor)
        elif not QUIT_KEYS.isdisjoint(keys):
            quit_event.set()

    modes = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read_keys)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _is_typed_at() -> bool:
    """Return whether stdin is a terminal whose input goes to this program."""
    if not is_terminal(sys.stdin):
        return False
    try:
        # The kernel stops a background process that changes the terminal's modes.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal without job control for this program
        return True


METRICS_TIMEOUT_S = 2.0
"""Seconds after which a request for the metrics fails."""


class TopSource:
    """Reads models and GPU memory from the controller, and token counters from a gateway's metrics, for `roundhouse
    top`. Remembers the last counters, to compute token rates with the next ones.

    Use it as an async context manager, with `client` entered before; it does not close `client`.
    """

    def __init__(self, client: AdminClient, gateway: str, key: str | None, *, verifies: bool) -> None:
        """`client` asks the admin API. `gateway` is the gateway's URL without a path. `key`: what the metrics need;
        None: nothing. `verifies`: whether the gateway's certificate is checked, if `gateway` is an `https` URL."""
        self._client = client
        self._verifies = verifies
        self._metrics_url = f"{gateway.rstrip('/')}/metrics"
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._last: TokenSample | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # takes 150 ms

        timeout = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def read_first_counters(self) -> bool:
        """Read the first token counters. Return whether the gateway's metrics could be read, so that the next view has
        rates. Raises nothing where they cannot."""
        self._last = await self._sample()
        return self._last is not None

    async def read_view(self) -> TopView:
        """Read everything that one view shows.

        Token rates, in tokens per second, are averages since the last call of this method or `read_first_counters`.
        They are None if there was no such call, or if this call or the last one could not read the gateway's metrics,
        which raises nothing. Raises NoControllerError if no controller answers, RequestRefusedError if it refuses, and
        CommandError for any other failure.
        """
        from cli.top_view import TopView, token_rates

        models, memory, sample = await asyncio.gather(
            self._client.list_models(), self._client.get_gpu_memory(), self._sample()
        )
        before, self._last = self._last, sample
        return TopView(models, memory, token_rates(before, sample))

    async def _sample(self) -> TokenSample | None:
        import aiohttp

        from cli.top_view import TokenSample, tokens_of

        try:
            async with self._session.get(self._metrics_url, headers=self._headers, ssl=self._verifies) as response:
                text = await response.text()
                if response.status != 200:
                    return None
                return TokenSample(asyncio.get_running_loop().time(), tokens_of(text))
        except (aiohttp.ClientError, OSError, ValueError):
            return None
