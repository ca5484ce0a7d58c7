"""`roundhouse drift`: show what runs differently from the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import first_line, plain_words, print_json, print_line, print_table, time_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import DriftItem

COLUMNS = ("MODEL", "REPLICA", "KIND", "FIELD", "DECLARED", "RUNNING", "SINCE", "MESSAGE")
VALUE_WIDTH = 60
"""Maximum width of a value in the table, in characters."""
MESSAGE_WIDTH = 120
"""Maximum width of a message in the table, in characters. `--json` shows the whole message."""


def drift(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Show what runs differently from what the files declare.

    Exit code 0: no drift. 2: drift. 3: no controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    report = ask_admin(controller_url(controller, state), lambda client: client.find_drift())
    if as_json:
        print_json(report)
    elif report.items:
        print_table(COLUMNS, [_row(item) for item in report.items])
    else:
        print_line("no drift: what runs is what is declared")
    return ExitCode.PENDING if report.items else ExitCode.DONE


def _row(item: DriftItem) -> tuple[str, ...]:
    values = (first_line(plain_words(value), VALUE_WIDTH) for value in (item.declared, item.running))
    message = first_line(item.message, MESSAGE_WIDTH)
    return (item.model, item.replica or "-", item.kind, item.field or "-", *values, time_words(item.since), message)
