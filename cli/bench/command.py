"""`roundhouse bench`: load-test a model, save a report, and compare two."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import ControllerUrl, GatewayUrl, Json, State, checked_name, model_names
from cli.output import CommandError, ExitCode, print_error, print_json, print_table, time_words
from controller import __version__

if TYPE_CHECKING:
    from cli.bench.load import LoadPlan
    from cli.bench.report import LevelResult
    from cli.gateway_client import GatewayAddress

DEFAULT_PROMPT = "Tell a long story about a locomotive that is turned on a turntable and driven out again."
MAX_CONCURRENCY = 1024


def bench(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Name of the model.", autocompletion=model_names, callback=checked_name),
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", metavar="N,N", help="Numbers of requests at a time, one level after another."),
    ] = "1,4,16",
    requests: Annotated[
        int, typer.Option("--requests", min=1, max=100_000, metavar="N", help="Requests of each level.")
    ] = 64,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, max=86_400, metavar="SECONDS", help="Time after which a level ends."),
    ] = 60.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=131_072, metavar="N", help="Longest answer.")
    ] = 128,
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="What every request asks, after a number of its own.")
    ] = DEFAULT_PROMPT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="NAME",
            help="Write NAME.html and NAME.json; default: bench-MODEL-TIME in this folder. With --compare: NAME.html, "
            "default none.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A B", help="Compare two saved reports (JSON) instead; no load is made."),
    ] = None,
    gateway: GatewayUrl = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Load-test a model, and save what was measured.

    Sends streaming chat completions, a level per number of requests at a time, and measures the time to first token,
    the time between tokens and tokens per second. Each level ends after its requests or its time. Ctrl-C ends the test
    and saves what it has. Exit code 0: no request failed; those cut off at the end of a level's time do not count. 1:
    some failed. 3: no gateway answers, or it no longer does. 130: Ctrl-C ended the test.
    """
    if compare is not None:
        return _compare(*compare, output, as_json=as_json)
    if model is None:
        raise CommandError("name the model: `roundhouse bench MODEL`, or two reports: --compare A B", ExitCode.USAGE)
    levels = parse_levels(concurrency)

    from cli.bench.load import LoadPlan  # aiohttp
    from cli.bench.report import COLUMNS, build_report, render_page, summary_rows
    from cli.gateway_client import find_gateway

    base = output or Path(f"bench-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}-{time.strftime('%Y%m%d-%H%M%S')}")
    _check_writable(base)
    plan = LoadPlan(model, prompt, max_tokens, requests, seconds)
    results, ending = asyncio.run(_run(find_gateway(gateway, controller, state), plan, levels))
    if not results:
        raise CommandError("ended before anything was measured", ExitCode.INTERRUPTED)
    options = {"requests": requests, "seconds": seconds, "max_tokens": max_tokens, "concurrency": levels}
    report = build_report(
        results,
        model=model,
        made_at=time_words(time.time()),
        version=__version__,
        options=options,
        is_whole=ending is ExitCode.DONE,
    )
    _write(base, ".json", json.dumps(report, indent=1) + "\n")
    _write(base, ".html", render_page(report))
    if as_json:
        print_json(report)
    else:
        print_table(COLUMNS, summary_rows(report))
    print_error(f"saved {_path(base, '.html')} and {_path(base, '.json')}")
    _print_errors(results)
    if ending is not ExitCode.DONE:
        return ending
    return ExitCode.FAILED if any(result.summary.errors for result in results) else ExitCode.DONE


def parse_levels(text: str) -> list[int]:
    """Return the numbers of a comma-separated list, ascending and without duplicates. Raises CommandError (USAGE) for
    anything else than whole numbers from 1 to `MAX_CONCURRENCY` (1024), and for an empty list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MAX_CONCURRENCY for part in parts):
        raise CommandError(
            f"--concurrency {text}: must be whole numbers from 1 to {MAX_CONCURRENCY}, such as 1,4,16", ExitCode.USAGE
        )
    return sorted({int(part) for part in parts})


async def _run(
    finding: Awaitable[GatewayAddress], plan: LoadPlan, levels: Sequence[int]
) -> tuple[list[LevelResult], ExitCode]:
    """Return what was measured, and how the test ended: DONE where the whole of it was made, else INTERRUPTED or
    NO_CONTROLLER, of which a line is printed."""
    from cli.bench.load import LiveView, LoadGenerator, show_live
    from cli.bench.report import result_rows

    stop_event = asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop_event.set)
    view = LiveView(plan.model, plan.requests, time.perf_counter)
    results: list[LevelResult] = []
    async with (
        LoadGenerator(await finding, plan, clock=time.perf_counter, stop_event=stop_event) as load,
        show_live(view),
    ):
        await load.warm_model()
        for concurrency in levels:
            if stop_event.is_set():
                break
            results.append(await load.run_level(concurrency, view.begin_level))
            view.show_finished(result_rows(results))
    if load.unreached is not None:
        print_error(str(load.unreached))
        return results, ExitCode.NO_CONTROLLER
    return results, ExitCode.INTERRUPTED if stop_event.is_set() else ExitCode.DONE


def _print_errors(results: Sequence[LevelResult]) -> None:
    for result in results:
        for code, number in result.summary.errors.items():
            print_error(f"{result.summary.concurrency} at a time: {number} ended with {code}")


def _compare(first: Path, second: Path, output: Path | None, *, as_json: bool) -> int:
    from cli.bench.report import COMPARE_COLUMNS, compare_reports, comparison_rows, render_comparison

    reports = [_read_report(path) for path in (first, second)]
    figures = list(compare_reports(*reports))
    if not figures:
        raise CommandError("the reports have no number of requests at a time in common")
    if output is not None:
        _write(output, ".html", render_comparison(first.name, reports[0], second.name, reports[1]))
    if as_json:
        print_json({"a": str(first), "b": str(second), "figures": figures})
    else:
        print_table(COMPARE_COLUMNS, comparison_rows(figures))
    return ExitCode.DONE


def _read_report(path: Path) -> dict[str, Any]:
    from cli.bench.report import ReportError, check_report

    try:
        return check_report(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}", ExitCode.USAGE) from None
    except ValueError:
        raise CommandError(f"{path} is no JSON; --compare takes the .json files of reports", ExitCode.USAGE) from None
    except ReportError as error:
        raise CommandError(f"{path} {error}", ExitCode.USAGE) from None


def _path(base: Path, suffix: str) -> Path:
    return base.with_name(base.name.removesuffix(".html").removesuffix(".json") + suffix)


def _check_writable(base: Path) -> None:
    """Raise CommandError (USAGE) before the load where the folder of the report is not there."""
    if not base.parent.is_dir():
        raise CommandError(f"--output {base}: there is no folder {base.parent}", ExitCode.USAGE)


def _write(base: Path, suffix: str, text: str) -> None:
    path = _path(base, suffix)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
