"""`roundhouse declarations`: models and keys that were declared at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import print_error, print_json, print_line, time_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.declarations import DeclarationKind, DeclarationsView

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model, or with --key of the key.")]
IsKey = Annotated[bool, typer.Option("--key", help="NAME is a key's name.")]

declarations = typer.Typer(name="declarations", help="Models and keys that were declared at run time, without a file.")


@declarations.callback()
def _group() -> None:
    """Models and keys that were declared at run time, without a file."""


@declarations.command("ls")
def ls(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """List what was declared at run time, by whom and when, and what of it is not in force. Exit code 1: something is
    not in force. 3: no controller answers."""
    view = _read(controller, state)
    if as_json:
        print_json(view)
        return ExitCode.DONE
    for kind, declared in (("model", view.models), ("key", view.keys)):
        for name, each in declared.items():
            print_line(f"{kind} {name}, declared by {each.actor} on {time_words(each.declared_at)}")
    for problem in view.problems:
        print_error(f"not in force: {problem.field}: {problem.message}")
    if not view.models and not view.keys:
        print_line("nothing is declared at run time")
    return ExitCode.FAILED if view.problems else ExitCode.DONE


@declarations.command("export")
def export(controller: ControllerUrl = None, state: State = None) -> int:
    """Print what was declared at run time as a desired-state file.

    Write it into the desired-state folder and commit it: the runtime declarations then end by themselves, and nothing
    restarts. Secrets are masked; the command says where. Exit code 3: no controller answers.
    """
    from controller.config.yaml_text import write_yaml

    view = _read(controller, state)
    document: dict[str, Any] = {
        kind: {name: each.fields for name, each in declared.items()}
        for kind, declared in (("models", view.models), ("keys", view.keys))
        if declared
    }
    if not document:
        print_error("nothing is declared at run time")
        return ExitCode.DONE
    print_line(write_yaml(document).rstrip("\n"))
    for path in _masked_paths(document, ()):
        print_error(f"{path} is a secret, and masked: write its value")
    return ExitCode.DONE


@declarations.command("rm")
def rm(
    name: Name, is_key: IsKey = False, controller: ControllerUrl = None, state: State = None, as_json: Json = False
) -> int:
    """Take a runtime declaration back: its model is unloaded, its key refused.

    What files declare stays. Running requests finish first. Exit code 1: no runtime declaration has this name. 3: no
    controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    kind: DeclarationKind = "keys" if is_key else "models"
    view = ask_admin(controller_url(controller, state), lambda client: client.drop_declaration(kind, name))
    if as_json:
        print_json(view)
    else:
        print_line(f"{'key ' if is_key else ''}{name}: no longer declared")
    return ExitCode.DONE


def _read(controller: str | None, state: Any) -> DeclarationsView:
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    return ask_admin(controller_url(controller, state), lambda client: client.list_declarations())


def _masked_paths(value: Any, path: tuple[str, ...]) -> list[str]:
    """Return the places of masked secrets in a document, such as `models.m.env.TOKEN`."""
    from controller.schema.admin import MASKED

    if isinstance(value, dict):
        return [each for key, item in value.items() for each in _masked_paths(item, (*path, key))]
    if isinstance(value, list):
        return [each for number, item in enumerate(value) for each in _masked_paths(item, (*path, str(number)))]
    return [".".join(path)] if isinstance(value, str) and MASKED in value else []
