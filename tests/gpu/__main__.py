"""The first hour on a GPU host: walks the steps, and ends in a table and a file of results to attach to an issue.

A run goes on where the last one ended: a step that passed or failed is not tried again, unless --again says so.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.settings import ControllerSettings
from tests.campaigns.record import current_commit
from tests.gpu.host import Host, find_programs
from tests.gpu.results import OtherHostError, Results, describe, print_report
from tests.gpu.rig import Rig
from tests.gpu.step import Outcome, Step
from tests.gpu.steps import STEPS
from tests.gpu.walk import walk_steps
from tests.support.docker_images import cache_dir

FAILED, WRONG_CALL, STOPPED = 1, 2, 130


def build_parser() -> argparse.ArgumentParser:
    """The options of tests/gpu/run."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU, on main memory: to try the script itself")
    parser.add_argument("--small", action="store_true", help="small models, and no step that takes minutes")
    parser.add_argument("--runtime", choices=("process", "docker"), default="process", help="where engines run")
    parser.add_argument("--folder", type=Path, help="of results and models; default: in the cache folder")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps, or the beginnings of their names")
    parser.add_argument(
        "--again", nargs="*", metavar="STEP", help="try these again, or all of them, though they have a result"
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="of the whole run: what has no time left is not tried"
    )
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    parser.add_argument("--llama-server", metavar="PATH", help="default: on PATH")
    parser.add_argument("--vllm", metavar="PATH", help="vLLM's program; default: on PATH")
    parser.add_argument(
        "--image", action="append", default=[], metavar="KIND=IMAGE", help="controller, worker, llama-server, vllm, ..."
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Walk the steps. 0: none failed."""
    parser = build_parser()
    given = parser.parse_args(argv)
    steps = choose_steps(STEPS, given.only)
    if not steps:
        parser.error(f"no step is called {' or '.join(given.only)}: --list names them")
    if given.list:
        print("\n".join(f"{step.name:32} {step.title}" for step in steps))
        return 0
    try:
        images = default_images() | dict(each.split("=", 1) for each in given.image)
    except ValueError:
        parser.error("--image takes KIND=IMAGE")
    host = Host(
        images=images,
        programs=find_programs({"llama-server": given.llama_server, "vllm": given.vllm}),
        runtime=given.runtime,
        on_cpu=given.cpu,
        is_small=given.small,
    )
    folder = (given.folder or cache_dir() / "gpu" / ("cpu" if given.cpu else given.runtime)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        results = Results.open_folder(folder, host.identity, _commit())
    except OtherHostError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return WRONG_CALL
    if given.again is not None:
        results.forget(given.again or [step.name for step in steps])
    rows: list[tuple[Step, Outcome]] = []
    is_whole = asyncio.run(_walk(steps, Rig(host, folder), results, rows, given.limit))
    print_report(host.describe_gpus(), rows)
    print(f"To attach: {results.path}")
    if not is_whole:
        print(f"gpu: stopped; what has a result is in {results.path}, and the next run goes on", file=sys.stderr)
        return STOPPED
    return FAILED if any(outcome.status == "failed" for _, outcome in rows) else 0


def choose_steps(steps: Sequence[Step], names: Sequence[str] | None) -> list[Step]:
    """Those that are named, wholly or by their beginning up to a dot; None: all of them."""
    if names is None:
        return [*steps]
    return [step for step in steps if any(f"{step.name}.".startswith(f"{name}.") for name in names)]


def default_images() -> dict[str, str]:
    """The image of each kind, as the controller's settings have them."""
    fields = ControllerSettings.model_fields
    images = {
        name.removeprefix("image_").replace("_", "-"): fields[name].default for name in fields if "image_" in name
    }
    return images | {f"worker-{engine}": f"roundhouse/worker-{engine}:latest" for engine in ("exllamav3", "vllm")}


async def _walk(
    steps: Sequence[Step], rig: Rig, results: Results, rows: list[tuple[Step, Outcome]], limit_s: float | None
) -> bool:
    """Walk the steps, and add what came of each to `rows`. False: a signal ended the walk."""
    task = asyncio.current_task()
    assert task is not None
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        # A further signal must not end the end: engines would be left behind.
        if not is_stopped:
            is_stopped = True
            task.cancel()

    # A machine that is lent for some minutes ends what runs there.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)

    def tell(step: Step, outcome: Outcome, is_known: bool) -> None:
        rows.append((step, outcome))
        earlier = ", in an earlier run" if is_known else ""
        print(f"{outcome.status:>9}  {step.name}{earlier}  {describe(outcome)}"[:300], flush=True)

    try:
        await walk_steps(steps, rig, results, tell, limit_s)
    except asyncio.CancelledError:
        if not is_stopped:
            raise
    finally:
        await rig.close()
    return not is_stopped


def _commit() -> str:
    try:
        return current_commit()
    except Exception:  # no git, or no work tree: the files were copied here
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
