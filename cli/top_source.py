"""What `roundhouse top` reads: the admin API, the gateway's metrics, and the key that ends it."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import aiohttp

from cli.admin_client import AdminClient
from cli.top_view import TokenSample, TopView, token_rates, tokens_of

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
    if not sys.stdin or not sys.stdin.isatty():
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
        models, memory, sample = await asyncio.gather(
            self._client.list_models(), self._client.get_gpu_memory(), self._sample()
        )
        before, self._last = self._last, sample
        return TopView(models, memory, token_rates(before, sample))

    async def _sample(self) -> TokenSample | None:
        try:
            async with self._session.get(self._metrics_url, headers=self._headers, ssl=self._verifies) as response:
                text = await response.text()
                if response.status != 200:
                    return None
                return TokenSample(asyncio.get_running_loop().time(), tokens_of(text))
        except (aiohttp.ClientError, OSError, ValueError):
            return None
