"""`roundhouse validate`: check the desired-state files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Desired, Json, Models
from controller.cli.output import count_words, print_json, print_line
from controller.cli.settings import read_settings

if TYPE_CHECKING:
    from controller.artifacts.model_roots import ModelRoots
    from controller.schema.desired import Definition


def validate(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Folder of the desired-state files; default: ROUNDHOUSE_DESIRED."),
    ] = None,
    desired: Desired = None,
    models: Models = None,
    as_json: Json = False,
) -> int:
    """Check the desired-state files.

    Prints every problem with file, line and field. Warns of models that could not be started on this machine, because
    one of their files is missing or would be refused (without a models folder no such file is checked), and of models
    whose name hides a route of the gateway. Needs no controller. Exit code 0: the files are good. 1: they have
    problems. 2: they are good, with warnings.
    """
    from controller.config.name_warnings import find_name_warnings
    from controller.config.parse import parse_folder  # pydantic and ruamel.yaml
    from controller.config.read import read_folder
    from controller.desired.placed_sources import place_models

    if folder is not None and desired is not None:
        raise CommandError("the folder stands twice: as an argument and after --desired", ExitCode.USAGE)
    settings = read_settings(desired=folder or desired, models=models)
    roots = settings.models.absolute()
    parsed_folder = parse_folder(read_folder(settings.desired), roots)
    has_models = any(root.is_dir() for root in roots.folders)
    placed, missing = place_models(roots.first, parsed_folder.definitions, parsed_folder.declared_models)
    start_problems = _find_start_problems(placed, roots) if has_models else {}
    name_warnings = find_name_warnings(parsed_folder.definitions)
    warnings = [*name_warnings, *start_problems.items()]
    if as_json:
        print_json(
            {
                "ok": parsed_folder.is_valid,
                "problems": [problem.model_dump() for problem in parsed_folder.problems],
                "warnings": [{"model": name, "message": message} for name, message in warnings],
                "downloads": missing,
                "models": sorted(parsed_folder.definitions),
                "keys": sorted(parsed_folder.keys),
                "tools": sorted(parsed_folder.tools.tools),
                "mcp_servers": sorted(parsed_folder.tools.servers),
            }
        )
    elif parsed_folder.is_valid:
        verdict = f"good, with {count_words(len(warnings), 'warning')}" if warnings else "good"
        tools = parsed_folder.tools
        counts = [(len(parsed_folder.keys), "key"), (len(tools.tools), "tool"), (len(tools.servers), "MCP server")]
        others = "".join(f"; {count_words(number, word)}" for number, word in counts if number)
        names = ", ".join(sorted(parsed_folder.definitions)) or "none"
        print_line(f"{settings.desired}: {verdict}; models: {names}{others}")
        for name, message in name_warnings:
            print_line(f"warning: {name}: {message}")
        for name, message in start_problems.items():
            print_line(f"warning: {name} cannot be started here: {message}")
        for name, source in sorted(missing.items()):
            print_line(f"{name}: its files are not here; they are downloaded from {source} before it starts")
        if not has_models:
            print_line(f"not here: {roots.describe()}; so the models' own files were not looked at")
    else:
        for problem in parsed_folder.problems:
            print_line(str(problem))
    if not parsed_folder.is_valid:
        return ExitCode.FAILED
    return ExitCode.PENDING if warnings else ExitCode.DONE


def _find_start_problems(definitions: Mapping[str, Definition], roots: ModelRoots) -> dict[str, str]:
    """Return why models could not be started here, by model name: the result of a preflight of their files."""
    from controller.engines import get_engine
    from controller.redaction.patterns import mask_text
    from controller.runtimes.model_files import check_model

    problems = {
        name: check_model(roots, get_engine(definition), definition) for name, definition in sorted(definitions.items())
    }
    return {name: mask_text(problem) for name, problem in problems.items() if problem is not None}
