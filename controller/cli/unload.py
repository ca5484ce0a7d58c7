"""`roundhouse unload`: unload a model."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, ModelArgument, NoWait, State, Timeout
from controller.cli.output import count_words, print_blocked, print_error, print_json, print_line
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.cli.admin_client import Transition
    from controller.schema.admin import AdminModel

SHOWN_REQUESTS = 10
"""Maximum number of running requests that are listed."""


def unload(
    name: ModelArgument,
    free: Annotated[
        bool,
        typer.Option("--free", help="Only free the memory. The next request to an `autoload` model loads it again."),
    ] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 300.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Unload a model, or cancel its load.

    Running requests finish; none is killed. Ctrl-C ends the waiting, not the unload. Exit code 0: the model is
    unloaded. 1: it cannot be unloaded. 2: it is still unloading; the requests that it waits for are shown. 3: no
    controller answers.
    """
    wait_s = None if no_wait else timeout
    try:
        transition = asyncio.run(_unload(controller_url(controller, state), name, not free, wait_s))
    except KeyboardInterrupt:
        print_error(f"{name} goes on unloading; `roundhouse load {name}` loads it again afterwards")
        return ExitCode.INTERRUPTED
    if as_json:
        print_json(transition.row)
    else:
        _print_transition(transition)
    return transition.verdict


async def _unload(url: str, name: str, hold: bool, wait_s: float | None) -> Transition:
    from controller.cli.admin_client import AdminClient, TransitionGoal  # aiohttp takes 150 ms
    from controller.cli.transition import wait_for_transition
    from controller.schema.status import ModelState

    async with AdminClient(url) as client:
        request = client.unload_model(name, hold=hold, wait_s=wait_s)
        return await (
            request
            if wait_s is None
            else wait_for_transition(client, name, request, TransitionGoal(ModelState.UNLOADED), wait_s)
        )


def _print_transition(transition: Transition) -> None:
    row = transition.row
    if transition.verdict is ExitCode.DONE:
        # With --free, a request may already be loading the model again.
        return_words = "" if row.runtime_state == "unloaded" else f"; by now it is {row.runtime_state.value}"
        print_line(f"{row.name}: unloaded{return_words}")
        return
    state = row.runtime_state.value
    state_words = "still unloading" if state == "unloading" else f"not unloaded yet, now {state}"
    print_line(f"{row.name}: {state_words}{_holder_words(row)}")
    for each in row.held_by[:SHOWN_REQUESTS]:
        waited_s = max(0, round(time.time() - each.since))
        print_line(f"  request {each.request_id} in {each.replica}, for {waited_s} s, through {each.gateway}")
    if len(row.held_by) > SHOWN_REQUESTS:
        print_line(f"  and {len(row.held_by) - SHOWN_REQUESTS} more")
    print_blocked(row)


def _holder_words(row: AdminModel) -> str:
    if not row.held_by:
        return ""
    return f"; it waits for {count_words(len(row.held_by), 'running request')}:"
