"""`roundhouse pause` and `roundhouse resume`."""

from __future__ import annotations

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import print_json, print_line
from controller.cli.settings import controller_url


def pause(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make the controller observe, never act.

    It stays so over restarts, until `roundhouse resume`. Engines run on, and serve. Exit code 3: no controller answers.
    """
    return _set(True, controller_url(controller, state), as_json)


def resume(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make a paused controller act again. One that is not paused stays as it is, which is no error. Exit code 3: no
    controller answers."""
    return _set(False, controller_url(controller, state), as_json)


def _set(paused: bool, url: str, as_json: bool) -> int:
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    ask_admin(url, lambda client: client.set_paused(paused))
    if as_json:
        print_json({"paused": paused})
    else:
        print_line("paused: the controller observes and does not act" if paused else "resumed: the controller acts")
    return ExitCode.DONE
