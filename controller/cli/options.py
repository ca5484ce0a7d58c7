"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from controller.cli.completion import event_kinds, model_names
from controller.cli.exit_codes import CommandError, ExitCode


def checked_name(value: str | None) -> str | None:
    """Return a model's name as given, None included. Raises typer.BadParameter for an empty or blank one, most likely
    an unset shell variable. Whether the model exists is not checked."""
    if value is not None and not value.strip():
        raise typer.BadParameter("a model's name is not empty")
    return value


Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Desired: TypeAlias = Annotated[
    Path | None, typer.Option("--desired", metavar="DIR", help="Folder of the desired-state files.")
]
State: TypeAlias = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State folder of the controller.")
]
Models: TypeAlias = Annotated[
    Path | None,
    typer.Option("--models", metavar="DIR", help="Folder with model files; several folders are separated by commas."),
]
Responses: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--responses", metavar="DIR", help="Folder of the gateway's `responses.db`; default: the state folder."
    ),
]
Documents: TypeAlias = Annotated[
    Path | None,
    typer.Option("--documents", metavar="DIR", help="State folder of retrieval; default: the controller's."),
]
NoDocuments: TypeAlias = Annotated[
    bool, typer.Option("--no-documents", help="Leave documents and searches out; `roundhouse rag` has its own backup.")
]
Runtime: TypeAlias = Annotated[
    str | None, typer.Option("--runtime", metavar="process|docker|auto", help="Where engines run.")
]
ControllerUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URL",
        envvar="ROUNDHOUSE_CONTROLLER_URL",
        help="Address of the controller: unix:PATH or http://HOST:PORT; default: the socket in the state folder.",
    ),
]
ModelArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the model.", autocompletion=model_names, callback=checked_name),
]
NoWait: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-wait", help="Return as soon as the controller has accepted the request, without waiting for its end."
    ),
]
Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", min=0, max=3600, metavar="SECONDS", help="Maximum time to wait.")
]
Follow: TypeAlias = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new entries as they come, until Ctrl-C.")
]
Kinds: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Show only entries of this kind, such as state or failure; may be repeated.",
        autocompletion=event_kinds,
    ),
]


def parse_kinds(chosen_kinds: list[str] | None) -> list[str]:
    """Return the kinds of events as they were asked for; empty if none was, which leaves the choice to the command.
    Raises CommandError (ExitCode.USAGE) for an unknown kind."""
    kinds = event_kinds("")
    unknown = next((kind for kind in chosen_kinds or () if kind not in kinds), None)
    if unknown is not None:
        raise CommandError(f"--kind {unknown}: there is no such kind; the kinds are {', '.join(kinds)}", ExitCode.USAGE)
    return chosen_kinds or []
