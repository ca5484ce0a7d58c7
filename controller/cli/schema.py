"""`roundhouse schema`: print the JSON Schema of the desired-state files."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Desired, Json
from controller.cli.output import print_json, print_line
from controller.cli.settings import read_settings


def schema(
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write the schema to schema.json in the desired-state folder instead of printing it."
        ),
    ] = False,
    desired: Desired = None,
    as_json: Json = False,
) -> int:
    """Print the JSON Schema of the desired-state files.

    Editors that support YAML schemas use it to check and complete the files. Exit code 1: the file cannot be written.
    """
    from controller.config.json_schema import schema_text  # pydantic
    from controller.config.read import SCHEMA_FILE

    if not write:
        print_line(schema_text().rstrip("\n"))
        return ExitCode.DONE
    path = read_settings(desired=desired).desired / SCHEMA_FILE
    try:
        path.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
    if as_json:
        print_json({"written": str(path)})
    else:
        print_line(f"wrote {path}")
    return ExitCode.DONE
