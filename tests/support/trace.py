"""The files and functions that one request enters, in order: `make trace REQUEST=chat|edit|load|document`.

For newcomers, who read what it prints from top to bottom, and for the budget of a plain chat. Each way is walked once
before, so that what happens only at the first time is not in it. Clients, engines and hosts are fakes in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.architecture import PROGRAMS
from tests.support.controller_harness import AddressedRuntime, ControllerHarness
from tests.support.retrieval_harness import retrieval_harness

REPOSITORY: Final = Path(__file__).resolve().parents[2]
Way = dict[str, dict[str, None]]
"""Each file that was entered, in the order of the first time, to its functions, in the same order."""


@contextmanager
def recording() -> Iterator[Way]:
    """Record which files and functions of the programs are entered, in this thread and in those that begin now."""
    way: Way = {}
    paths: dict[str, str | None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name not in paths:
            paths[name] = _path_in_programs(name)
        path = paths[name]
        if path is not None and not frame.f_code.co_qualname.endswith((">", "__repr__")):
            way.setdefault(path, {}).setdefault(frame.f_code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _path_in_programs(name: str) -> str | None:
    path = Path(name)
    if not path.is_relative_to(REPOSITORY):
        return None
    inside = path.relative_to(REPOSITORY)
    return str(inside) if inside.parts[0] in PROGRAMS else None


async def trace_chat(**fields: Any) -> Way:
    """A plain chat through a gateway: one model, one ready replica; blocking, unless `fields` of its body say else."""
    async with gateway_harness() as gateway, engines(1) as [engine]:
        await gateway.publish(route("m", [engine.url]))
        for _ in range(2):
            assert (await gateway.chat("m", **fields)).status == 200
        ways = []
        for _ in range(5):  # the shortest: a timer of the gateway's may fall into another one
            with recording() as way:
                assert (await gateway.chat("m", **fields)).status == 200
            ways.append(way)
        return min(ways, key=len)


@asynccontextmanager
async def _controller() -> AsyncIterator[tuple[Path, ControllerHarness, Callable[[], Any]]]:
    """The file of a controller's models, the controller, and what runs three of its rounds."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        root, time = Path(folder), [1_700_000_000.0]
        (root / "desired").mkdir()
        file = root / "desired" / "models.yaml"
        file.write_text("models: {a: {backend: stub}, off: {backend: stub, enabled: false}}\n")
        runtime = AddressedRuntime(lambda: time[0])
        controller = ControllerHarness(root, runtime, time)

        async def run_rounds() -> None:
            for _ in range(3):
                await controller.reconciler.run_round()
                await controller.operations.wait_until_idle()
                for name in runtime.replicas:
                    controller.prober.ready.setdefault(name, time[0])
                time[0] += 1.0

        try:
            await controller.files.read_files()
            await run_rounds()
            yield file, controller, run_rounds
        finally:
            controller.end()


async def trace_edit() -> Way:
    """An edit of the desired state that adds a model, until its engine is ready and routed."""
    async with _controller() as (file, controller, run_rounds):
        with recording() as way:
            file.write_text("models: {a: {backend: stub}, b: {backend: stub}, off: {backend: stub, enabled: false}}\n")
            await controller.files.read_files()
            await run_rounds()
        return way


async def trace_load() -> Way:
    """An operator's load of a model that is off, until its engine is ready and routed."""
    async with _controller() as (_, controller, run_rounds):
        with recording() as way:
            controller.admin_service.load_model("off", {}, None, actor="operator")
            await run_rounds()
        return way


async def trace_document() -> Way:
    """A document, from its upload to the search that finds it."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        async with retrieval_harness(Path(folder)) as retrieval:
            await retrieval.add("The roof of the roundhouse is round.")
            await retrieval.search("roof")
            with recording() as way:
                await retrieval.add("A turntable turns locomotives.")
                await retrieval.search("turntable")
            return way


WAYS: Final = {"chat": trace_chat, "edit": trace_edit, "load": trace_load, "document": trace_document}


def main() -> None:
    """Print one way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("request", choices=WAYS)
    way = asyncio.run(WAYS[parser.parse_args().request]())
    for path, functions in way.items():
        print(path)
        for function in functions:
            print(f"    {function}")
    print(f"{len(way)} files, {sum(map(len, way.values()))} functions")


if __name__ == "__main__":
    main()
