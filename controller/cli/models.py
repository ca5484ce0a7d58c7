"""`roundhouse models` and `roundhouse rm`: what lies in the models folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import count_words, print_error, print_json, print_line, print_table, size_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.model_files import ModelFile

_MEMORY_WORDS = {"gpu": "GPU", "host": "main memory"}


def models(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """List what lies in the models folders.

    For each model: its size, whether it was downloaded or put there by hand, which declared models use it, and the
    memory that a replica takes. Exit code 3: no controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    found = ask_admin(controller_url(controller, state), lambda client: client.list_model_files())
    if as_json:
        print_json(found)
        return ExitCode.DONE
    if not found.models:
        print_error(f"nothing lies in {', '.join(found.folders)}; `roundhouse pull` downloads a model")
        return ExitCode.DONE
    print_table(("PATH", "SIZE", "MEMORY", "USED BY", "FROM"), [_cells(each) for each in found.models])
    if not found.is_complete:
        print_error("there are more files than are listed")
    return ExitCode.DONE


def rm(
    model: Annotated[
        str,
        typer.Argument(metavar="PATH|REF", help="Path of a file or folder below the models folder; else a reference."),
    ],
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Remove a downloaded model from the models folder.

    What a declared model uses stays, and so does what somebody put there by hand or changed since. Exit code 1: it is
    not removed, or not all of it. 3: no controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    removal = ask_admin(controller_url(controller, state), lambda client: client.remove_model_files(model))
    if as_json:
        print_json(removal)
        return ExitCode.DONE
    for path in removal.removed:
        print_line(f"{path}: removed")
    for path in removal.kept:
        print_line(f"{path}: stays, for another download has it, too")
    print_line(f"{count_words(len(removal.removed), 'file')} removed, {size_words(removal.freed_bytes)} freed")
    return ExitCode.DONE


def _cells(row: ModelFile) -> tuple[str, ...]:
    path = f"{row.path}/" if row.kind == "folder" else row.path
    return path, size_words(row.size), _memory_words(row), " ".join(row.used_by) or "-", row.reference or "by hand"


def _memory_words(row: ModelFile) -> str:
    if row.memory_mib is None:
        return "-"
    # The size of the files is without the context.
    least = "over " if row.memory_source == "model_artifact_size" else ""
    return f"{least}{row.memory_mib}MiB {_MEMORY_WORDS[row.memory_on or 'host']}"
