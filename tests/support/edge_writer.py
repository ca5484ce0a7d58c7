"""A program that writes to an embedded vector store, and that is killed: `python -m tests.support.edge_writer FOLDER
STEP`.

It prints the number of each version whose points the store has acknowledged, and `optimized` when the optimization
under way has ended; then it goes on writing. At STEP (see `STEPS`; `none`: never) it kills itself with SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from retrieval.vector_store.base import CollectionSpec, Point
from retrieval.vector_store.edge import collection
from retrieval.vector_store.edge.collection import CollectionFolder
from retrieval.vector_store.edge.connection import optimize_shard
from retrieval.vector_store.edge.store import EdgeStore
from tests.support.wait import until

SPEC: Final = CollectionSpec("dense", 8)
CHUNKS: Final = 20
"""Points per version."""
_copytree: Final = shutil.copytree
STEPS: Final = (
    "while copying",
    "after copy_shard",
    "while optimizing",
    "after optimize_shard",
    "after open_shard",
    "before write_record",
    "within write_record",
    "after write_record",
    "before remove_shard",
    "after remove_shard",
)


def make_version(number: int) -> list[Point]:
    """The points of one version: each says its number and its ordinal in all its parts."""
    return [
        Point(
            id=str(uuid.UUID(int=number * CHUNKS + ordinal)),
            tenant=f"t{number % 3}",
            space="",
            version=number,
            ordinal=ordinal,
            text=f"everywhere v{number} v{number}c{ordinal}",
            vector=[float(1 + (number * (axis + 2) + ordinal) % 31) for axis in range(8)],
            attributes={"number": number},
        )
        for ordinal in range(CHUNKS)
    ]


async def main() -> None:
    """Write, optimize and write on, until killed."""
    folder, step = Path(sys.argv[1]), sys.argv[2]
    store = await EdgeStore.open(folder)
    await store.create_collection(SPEC)
    number = await store.count_points("dense") // CHUNKS
    for number in range(number, number + 30):  # noqa: B020 - goes on from there
        await _write(store, number)
    await store.delete_versions("dense", [-1])
    _kill_at(step)
    optimizing = asyncio.create_task(store.optimize_collection("dense"))
    optimizing.add_done_callback(_report)
    while True:
        number += 1
        await _write(store, number)


async def _write(store: EdgeStore, number: int) -> None:
    await store.upsert_points("dense", make_version(number))
    print(number, flush=True)


def _report(optimizing: asyncio.Task[None]) -> None:
    if optimizing.exception() is not None:
        optimizing.print_stack()
        os._exit(3)
    print("optimized", flush=True)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(step: str) -> None:
    when, _, what = step.partition(" ")
    if step == "while copying":
        setattr(shutil, "copytree", _copy_in_part)  # noqa: B010 - of another type
    elif step == "while optimizing":
        setattr(collection, "optimize_shard", _optimize_in_part)  # noqa: B010
    elif step == "within write_record":
        setattr(Path, "replace", _die)  # noqa: B010
    elif what in ("optimize_shard", "open_shard"):
        setattr(collection, what, _die_after(getattr(collection, what)))
    elif step != "none":
        method = getattr(CollectionFolder, what)
        setattr(CollectionFolder, what, _die if when == "before" else lambda *args: _die(method(*args)))


def _copy_in_part(source: str, target: str, *args: Any, **options: Any) -> str:
    copied: list[str] = []

    def copy(file: str, copy: str) -> str:
        if len(copied) == 5:
            _die()
        copied.append(file)
        return shutil.copy2(file, copy)

    return _copytree(source, target, *args, **(options if args else options | {"copy_function": copy}))


def _die_after(function: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[None]]:
    async def run(*args: object) -> None:
        _die(await function(*args))

    return run


async def _optimize_in_part(*args: Any) -> None:
    task = asyncio.create_task(optimize_shard(*args))
    await until("the optimizer runs", lambda: task.done() or find_processes("optimizer", Path(sys.argv[1])))
    _die()


def find_processes(module: str, folder: Path) -> list[int]:
    """Processes of `retrieval.vector_store.edge.MODULE` for a shard below `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            command = (entry / "cmdline").read_bytes().decode().split("\0")
            if f"retrieval.vector_store.edge.{module}" in command and any(str(folder) in word for word in command):
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    asyncio.run(main())
