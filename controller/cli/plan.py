"""`roundhouse plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.exits import Exit
from controller.cli.options import ControllerUrl, Json, State, controller_url
from controller.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from controller.schema.status import PlanView


def plan(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """What would be done now, and why.

    Does nothing of it. Exit code 0: nothing to do. 2: there is something to do, or something blocked. 3: no controller
    answers.
    """
    from controller.cli.client import ask  # aiohttp takes 150 ms

    view = ask(controller_url(controller, state), lambda client: client.plan())
    if as_json:
        say_json(view)
    else:
        _show(view)
    return Exit.PENDING if view.actions or view.blocked else Exit.DONE


def _show(view: PlanView) -> None:
    if view.paused:
        say("paused: nothing of this is done until `roundhouse resume`")
    if view.actions:
        rows = [(each.kind, each.model or "", each.replica or "", each.reason) for each in view.actions]
        say_table(("ACTION", "MODEL", "REPLICA", "REASON"), rows)
    if view.blocked:
        where = [f"{each.model}/{each.index}" if each.index is not None else each.model for each in view.blocked]
        rows_blocked = [(place, _one_line(each.reason)) for place, each in zip(where, view.blocked, strict=True)]
        say_table(("BLOCKED", "REASON"), rows_blocked)
    if not view.actions and not view.blocked:
        say("nothing to do: what runs is what is declared")


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
