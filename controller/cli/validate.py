"""`roundhouse validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.exit_codes import Exit
from controller.cli.options import Json, Models
from controller.cli.output import counted, say, say_json
from controller.cli.settings import settings_of


def validate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder of the desired-state files; default: the setting.")
    ] = None,
    models: Models = None,
    as_json: Json = False,
) -> int:
    """Check the desired-state files.

    Prints every problem with file, line and field. Needs no controller. Exit code 0: they are good, 1: they have
    problems.
    """
    from controller.config.parse import parse  # pydantic and ruamel.yaml
    from controller.config.read import read_folder

    settings = settings_of(desired=folder, models=models)
    parsed_folder = parse(read_folder(settings.desired), settings.models.absolute())
    if as_json:
        problems = [problem.model_dump() for problem in parsed_folder.problems]
        declared_names = {"models": sorted(parsed_folder.definitions), "keys": sorted(parsed_folder.keys)}
        say_json({"ok": parsed_folder.ok, "problems": problems, **declared_names})
    elif parsed_folder.ok:
        keys = f"; {counted(len(parsed_folder.keys), 'key')}" if parsed_folder.keys else ""
        say(f"{settings.desired}: good; models: {', '.join(sorted(parsed_folder.definitions)) or 'none'}{keys}")
    else:
        for problem in parsed_folder.problems:
            say(str(problem))
    return Exit.DONE if parsed_folder.ok else Exit.FAILED
