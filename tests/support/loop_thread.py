"""Servers of a test that must answer while no event loop of the test runs, as between the tests of a module."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def open_in_thread(made: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter `made` on the event loop of a thread of its own, which runs until this ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(made.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
