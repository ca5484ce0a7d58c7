"""`roundhouse validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import Json, Models
from controller.cli.output import count_words, print_json, print_line
from controller.cli.settings import read_settings


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
    from controller.config.parse import parse_folder  # pydantic and ruamel.yaml
    from controller.config.read import read_folder

    settings = read_settings(desired=folder, models=models)
    parsed_folder = parse_folder(read_folder(settings.desired), settings.models.absolute())
    if as_json:
        problems = [problem.model_dump() for problem in parsed_folder.problems]
        declared_names = {"models": sorted(parsed_folder.definitions), "keys": sorted(parsed_folder.keys)}
        print_json({"ok": parsed_folder.is_valid, "problems": problems, **declared_names})
    elif parsed_folder.is_valid:
        keys = f"; {count_words(len(parsed_folder.keys), 'key')}" if parsed_folder.keys else ""
        print_line(f"{settings.desired}: good; models: {', '.join(sorted(parsed_folder.definitions)) or 'none'}{keys}")
    else:
        for problem in parsed_folder.problems:
            print_line(str(problem))
    return ExitCode.DONE if parsed_folder.is_valid else ExitCode.FAILED
