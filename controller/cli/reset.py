"""`roundhouse reset`."""

from __future__ import annotations

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, ModelArgument, State
from controller.cli.output import print_json, print_line
from controller.cli.settings import controller_url


def reset(name: ModelArgument, controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Take back what load and unload said of a model.

    From then on only the files say what it should be, and, with `autoload`, the requests. A model of which neither was
    said stays as it is. Exit code 1: there is no such model. 3: no controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    row = ask_admin(controller_url(controller, state), lambda client: client.reset_model(name))
    if as_json:
        print_json(row)
    else:
        print_line(f"{row.name}: as the files say ({row.statement.reason}); now {row.runtime_state.value}")
    return ExitCode.DONE
