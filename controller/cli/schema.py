"""`roundhouse schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.exit_codes import CommandError, Exit
from controller.cli.options import Desired, Json
from controller.cli.output import say, say_json
from controller.cli.settings import settings_of


def schema(
    write: Annotated[
        bool,
        typer.Option("--write", help="Write it to schema.json in the desired-state folder instead of printing it."),
    ] = False,
    desired: Desired = None,
    as_json: Json = False,
) -> int:
    """Print the files' JSON Schema.

    Editors that know YAML schemas check and complete by it.
    """
    from controller.config.json_schema import schema_text  # pydantic
    from controller.config.read import SCHEMA_FILE

    if not write:
        say(schema_text().rstrip("\n"))
        return Exit.DONE
    path = settings_of(desired=desired).desired / SCHEMA_FILE
    try:
        path.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
    if as_json:
        say_json({"written": str(path)})
    else:
        say(f"wrote {path}")
    return Exit.DONE
