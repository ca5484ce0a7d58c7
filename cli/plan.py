"""`roundhouse plan`, `validate`, `schema` and `declarations`: what is declared, and what would follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import ControllerUrl, Desired, EvenLast, Json, Models, State, controller_url, read_settings
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    one_line,
    print_error,
    print_json,
    print_line,
    print_table,
    time_words,
    value_words,
)

if TYPE_CHECKING:
    from contract.admin import DryRun, ModelChange
    from contract.declarations import DeclarationKind, DeclarationsView
    from contract.desired import Definition
    from contract.status import BlockedView, PlanView
    from controller.artifacts.model_roots import ModelRoots
    from controller.config.parse import ParsedFolder
    from controller.settings import ControllerSettings


EFFECTS = {
    "none": "nothing that runs is touched",
    "start": "starts",
    "stop": "stops",
    "restart": "restarts",
    "scale": "more or fewer engines",
}
"""Effect of a change to its words."""


def plan(
    diff: Annotated[
        list[Path] | None,
        typer.Option(
            "--diff",
            metavar="FILE",
            help="Show what would change if this file replaced the desired-state file of the same name; may be "
            "repeated.",
        ),
    ] = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show what the controller would do now, or with other files.

    And why. Changes nothing. Exit code 0: nothing to do. 1: the files of --diff have problems. 2: there is something to
    do, or something is blocked. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    if diff:
        files = _read_proposed_files(diff)
        answer = ask_admin(controller_url(controller, state), lambda client: client.run_dry_run(files))
        outcome = _with_given_paths(answer, diff)
        if as_json:
            print_json(outcome)
        else:
            _show_diff(outcome)
        return _diff_verdict(outcome)
    view = ask_admin(controller_url(controller, state), lambda client: client.get_plan())
    if as_json:
        print_json(view)
    else:
        _show(view)
    return ExitCode.PENDING if view.actions or view.blocked else ExitCode.DONE


def _read_proposed_files(paths: list[Path]) -> dict[str, str]:
    """Read the files of --diff. Returns contents by file name. Raises CommandError."""
    from controller.config.parse import SUFFIXES, is_read

    files: dict[str, str] = {}
    for path in paths:
        if not is_read(path.name):
            kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            raise CommandError(f"--diff {path}: no desired-state file has such a name ({kinds})", ExitCode.USAGE)
        if path.name in files:
            raise CommandError(f"--diff {path}: there is another file {path.name}", ExitCode.USAGE)
        try:
            files[path.name] = path.read_text(encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise CommandError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    return files


def _with_given_paths(outcome: DryRun, paths: list[Path]) -> DryRun:
    """Replace the file names in problems by the paths that the operator gave: the controller names files by its own
    folder."""
    paths_by_name = {path.name: str(path) for path in paths}
    problems = [
        each.model_copy(update={"file": paths_by_name.get(Path(each.file).name, each.file)})
        for each in outcome.problems
    ]
    return outcome.model_copy(update={"problems": problems})


def _diff_verdict(outcome: DryRun) -> ExitCode:
    if not outcome.ok:
        return ExitCode.FAILED
    return ExitCode.PENDING if outcome.changes or outcome.keys or outcome.tools else ExitCode.DONE


def _show_diff(outcome: DryRun) -> None:
    for problem in outcome.problems:
        print_line(str(problem))
    if not outcome.ok:
        print_line("with these problems what is in force would stay")
        return
    blocked = outcome.plan.blocked if outcome.plan is not None else []
    if outcome.changes or outcome.keys or outcome.tools:
        _show_blocked(blocked)
    for change in outcome.changes:
        _show_change(change, [each.index for each in blocked if each.model == change.model])
    for key in outcome.keys:
        print_line(f"key {key.key}: {key.change}" + (f": {', '.join(key.fields)}" if key.change == "edited" else ""))
    for tool in outcome.tools:
        subject = "tool" if tool.kind == "tool" else "MCP server"
        fields = f": {', '.join(tool.fields)}" if tool.change == "edited" else ""
        print_line(f"{subject} {tool.name}: {tool.change}{fields}")
    for name in outcome.superseded:
        print_line(f"{name}: its runtime declaration would end, the files declare it")
    if not outcome.changes and not outcome.keys and not outcome.tools:
        print_line("nothing would change" + (", and this would stay blocked:" if blocked else ""))
        _show_blocked(blocked)


def _show_change(change: ModelChange, blocked: Sequence[int | None]) -> None:
    """Print a change of a model. `blocked`: its replicas that the plan cannot start yet, None for all of them."""
    effect = EFFECTS[change.effect] + (f" {', '.join(change.restarts)}" if change.effect == "restart" else "")
    if blocked and change.effect not in ("none", "stop"):
        replicas = "" if None in blocked else " for " + ", ".join(f"{change.model}/{index}" for index in blocked)
        effect = f"BLOCKED{replicas}; once that is over, {effect}"
    print_line(f"{change.model}: {change.change}, {effect}")
    for field in change.fields:
        is_masked = field.before == field.after  # both masked
        change_words = "changed (secret)" if is_masked else f"{value_words(field.before)} -> {value_words(field.after)}"
        print_line(f"  {field.field}: {change_words}")
    for ended_field in change.ends:
        print_line(f"  ends what an operator set: {ended_field}")


def _show(view: PlanView) -> None:
    if view.paused:
        print_line("paused: nothing of this is done until `roundhouse resume`")
    if view.actions:
        has_hosts = any(each.host for each in view.actions)
        rows = [
            (each.kind, each.model or "", each.replica or "", *([each.host] if has_hosts else []), each.reason)
            for each in view.actions
        ]
        print_table(("ACTION", "MODEL", "REPLICA", *(["HOST"] if has_hosts else []), "REASON"), rows)
    _show_blocked(view.blocked)
    if not view.actions and not view.blocked:
        print_line("nothing to do: what runs is what is declared")


def _show_blocked(blocked: Sequence[BlockedView]) -> None:
    if blocked:
        places = [f"{each.model}/{each.index}" if each.index is not None else each.model for each in blocked]
        rows = [(place, one_line(each.reason)) for place, each in zip(places, blocked, strict=True)]
        print_table(("BLOCKED", "REASON"), rows)


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
    they take more memory than a GPU or main memory has, declared or predicted from their files, or one of their files
    is missing or would be refused (without a models folder no file is looked at), and of models whose name hides a
    route of the gateway. Needs no controller.
    Exit code 0: the files are good. 1: they have problems. 2: they are good, with warnings.
    """
    from controller.config.parse import (
        find_name_warnings,
        list_places,
        parse_documents,  # pydantic and ruamel.yaml
        read_documents,
        read_folder,
    )
    from controller.desired.file_source import place_models

    if folder is not None and desired is not None:
        raise CommandError("the folder stands twice: as an argument and after --desired", ExitCode.USAGE)
    settings = read_settings(desired=folder or desired, models=models)
    roots = settings.models.absolute()
    snapshot = read_folder(settings.desired)
    documents = read_documents(snapshot)
    parsed_folder = parse_documents(snapshot, documents, roots)
    has_models = any(root.is_dir() for root in roots.folders)
    placed, missing = place_models(roots.first, parsed_folder.definitions, parsed_folder.declared_models)
    start_problems = _find_oversized(parsed_folder, placed, settings)
    start_problems |= _find_start_problems(placed, roots) if has_models else {}
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
        places = list_places(documents.values())
        words = [(name, f"{name}: {message}") for name, message in name_warnings]
        words += [(name, f"{name} cannot be started here: {message}") for name, message in start_problems.items()]
        for name, text in words:
            print_line(f"{places[f'models.{name}']}: warning: {text}")
        print_line(f"{settings.desired}: {verdict}; models: {names}{others}")
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


def _find_oversized(
    parsed: ParsedFolder, placed: Mapping[str, Definition], settings: ControllerSettings
) -> dict[str, str]:
    """Return by name why models have never room here: one replica takes more than a GPU or main memory has, as it
    declares or as is predicted of its files. The driver, which may take seconds, is asked only where a model runs on
    GPUs."""
    import psutil

    from cli.doctor_checks import build_host
    from controller.hosts import Gpu
    from controller.memory_estimator import predict_declared
    from controller.planning.placement import explain_never_fits

    models, requirements = predict_declared(
        {**parsed.definitions, **placed}, parsed.declared_models, settings.models.absolute()
    )
    gpus: tuple[Gpu, ...] = ()
    has_unread_gpus = False
    if any(model.gpu_count for model in models.values()):
        from controller.runtimes.nvml import NvmlReader

        reader = NvmlReader()
        gpus, has_unread_gpus = reader.read_gpus() or (), bool(reader.unread_gpus)
        reader.close()
    total_mib = psutil.virtual_memory().total // 2**20
    host = build_host(gpus, has_unread_gpus, total_mib, settings.engines_memory_mib)
    host = replace(host, requirements=requirements)
    judged = {name: model for name, model in sorted(models.items()) if not model.names_hosts}
    reasons = {name: explain_never_fits(model, host) for name, model in judged.items()}
    return {name: f"it {reason}" for name, reason in reasons.items() if reason is not None}


def _find_start_problems(definitions: Mapping[str, Definition], roots: ModelRoots) -> dict[str, str]:
    """Return why models could not be started here, by model name: the result of a preflight of their files."""
    from controller.engines import get_engine
    from controller.redaction import mask_text
    from controller.runtimes.model_files import check_model

    problems = {
        name: check_model(roots, get_engine(definition), definition) for name, definition in sorted(definitions.items())
    }
    return {name: mask_text(problem) for name, problem in problems.items() if problem is not None}


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
    from controller.config.parse import SCHEMA_FILE

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


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model, or with --key of the key.")]
IsKey = Annotated[bool, typer.Option("--key", help="NAME is a key's name.")]

declarations = typer.Typer(name="declarations", help="Models and keys that were declared at run time.")


@declarations.callback()
def _group() -> None:
    """Models and keys that were declared at run time."""


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
    from controller.config.yaml12 import write_yaml

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
    name: Name,
    is_key: IsKey = False,
    even_last: EvenLast = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Take a runtime declaration back: its model is unloaded, its key refused.

    What files declare stays. Running requests finish first. Exit code 1: no runtime declaration has this name, or
    it is the last key. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    kind: DeclarationKind = "keys" if is_key else "models"
    view = ask_admin(
        controller_url(controller, state), lambda client: client.drop_declaration(kind, name, even_last=even_last)
    )
    if as_json:
        print_json(view)
    else:
        print_line(f"{'key ' if is_key else ''}{name}: no longer declared")
    return ExitCode.DONE


def _read(controller: str | None, state: Any) -> DeclarationsView:
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    return ask_admin(controller_url(controller, state), lambda client: client.list_declarations())


def _masked_paths(value: Any, path: tuple[str, ...]) -> list[str]:
    """Return the places of masked secrets in a document, such as `models.m.env.TOKEN`."""
    from contract.admin import MASKED

    if isinstance(value, dict):
        return [each for key, item in value.items() for each in _masked_paths(item, (*path, key))]
    if isinstance(value, list):
        return [each for number, item in enumerate(value) for each in _masked_paths(item, (*path, str(number)))]
    return [".".join(path)] if isinstance(value, str) and MASKED in value else []
