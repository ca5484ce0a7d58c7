"""`roundhouse pause` and `roundhouse resume`."""

from __future__ import annotations

from controller.cli.exit_codes import Exit
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import say, say_json
from controller.cli.settings import controller_url


def pause(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make the controller observe, never act.

    It stays so over restarts, until `roundhouse resume`.
    """
    return _set(True, controller_url(controller, state), as_json)


def resume(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make a paused controller act again."""
    return _set(False, controller_url(controller, state), as_json)


def _set(paused: bool, url: str, as_json: bool) -> int:
    from controller.cli.client import ask  # aiohttp takes 150 ms

    ask(url, lambda client: client.pause(paused))
    if as_json:
        say_json({"paused": paused})
    else:
        say("paused: the controller observes and does not act" if paused else "resumed: the controller acts")
    return Exit.DONE
