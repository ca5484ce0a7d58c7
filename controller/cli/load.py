"""`roundhouse load`: load a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completion import load_fields
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.load_values import LoadScalar, load_values
from controller.cli.options import ControllerUrl, Json, ModelArgument, NoWait, State, Timeout
from controller.cli.output import (
    clock_words,
    count_words,
    ends_by_reset,
    ends_by_unload,
    one_line,
    print_blocked,
    print_error,
    print_json,
    print_line,
)
from controller.cli.settings import controller_url
from controller.status.rollout import find_outdated

if TYPE_CHECKING:
    from controller.cli.admin_client import Transition
    from controller.schema.admin import AdminModel


def load(
    name: ModelArgument,
    set_values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Value of a definition field for this load only, written as in a file; may be repeated.",
            autocompletion=load_fields,
        ),
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, help="Number of replicas for this load.")] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Apply the values also if the model is loaded: its engines are replaced one at a time. A new engine "
            "starts before the old one stops if memory allows both.",
        ),
    ] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Load a model.

    The files stay as they are; `roundhouse reset` returns to what they say. Ctrl-C ends the waiting, not the load. Exit
    code 0: the model is loaded. 1: the load failed, or cannot be done with these values. 2: the model is still loading.
    3: no controller answers.
    """
    values = load_values(set_values or ())
    if replicas is not None:
        if "replicas" in values:
            raise CommandError("--replicas and --set replicas: say it once", ExitCode.USAGE)
        values["replicas"] = replicas
    try:
        wait_s = None if no_wait else timeout
        transition = asyncio.run(_load(controller_url(controller, state), name, values, wait_s, restart))
    except KeyboardInterrupt:
        way_out = ends_by_reset(name) if restart else ends_by_unload(name)
        print_error(f"{name} goes on loading; {way_out}")
        return ExitCode.INTERRUPTED
    if as_json:
        print_json(transition.row)
    _print_transition(transition, as_json)
    return transition.verdict


async def _load(url: str, name: str, values: dict[str, LoadScalar], wait_s: float | None, restart: bool) -> Transition:
    from controller.cli.admin_client import AdminClient, TransitionGoal  # aiohttp takes 150 ms
    from controller.cli.transition import wait_for_transition
    from controller.schema.status import ModelState

    async with AdminClient(url) as client:
        request = client.load_model(name, values, wait_s, restart=restart)
        if wait_s is None:
            return await request
        goal = TransitionGoal(ModelState.LOADED, restart)
        return await wait_for_transition(client, name, request, goal, wait_s)


def _print_transition(transition: Transition, as_json: bool) -> None:
    row = transition.row
    if transition.verdict is ExitCode.FAILED:
        for line in failure_lines(row):
            print_error(line)
    elif not as_json:
        print_line(f"{row.name}: {_state_words(transition)}")
        print_blocked(row)


def _state_words(transition: Transition) -> str:
    row = transition.row
    state, replicas = row.runtime_state.value, count_words(row.replicas, "replica")
    if state == "loaded" and transition.verdict is ExitCode.PENDING:
        new_count = row.loaded_replicas - len(list(find_outdated(row.replica_details)))
        has = "has" if new_count == 1 else "have"
        return f"restarting, it serves meanwhile, {new_count} of {replicas} {has} the new values"
    words = "still loading" if state == "loading" else state if state == "loaded" else f"not loaded yet, now {state}"
    return f"{words}, {row.loaded_replicas} of {replicas} ready"


def failure_lines(row: AdminModel) -> Iterator[str]:
    """Yield lines that say why the load of a model failed (`row.last_error`), whether it is tried again, and what else
    blocks it. The first line may contain line breaks: the engine's last log lines."""
    error, retry = row.last_error or "no reason is known", _retry_words(row)
    verdict = "serves with the values of before, the new ones failed" if row.is_loaded else "failed"
    is_one_line = "\n" not in error  # else the engine's log lines follow, and the retry gets a line of its own
    yield (
        f"{row.name} {verdict}: {error.removesuffix('.')}; {retry}"
        if retry and is_one_line
        else f"{row.name} {verdict}: {error}"
    )
    if retry and not is_one_line:
        yield f"{row.name}: {retry}"
    yield from (f"{row.name}: {one_line(reason)}" for reason in row.blocked if reason != row.last_error)


def _retry_words(row: AdminModel) -> str | None:
    way_out = ends_by_reset(row.name) if row.is_loaded else ends_by_unload(row.name)
    if row.retry_at is not None:
        return f"tried again at {clock_words(row.retry_at)} ({way_out})"
    if row.is_loaded:
        return way_out
    # The next attempt may have begun before this row was read.
    return f"it is tried again now ({ends_by_unload(row.name)})" if row.runtime_state == "loading" else None
