"""`roundhouse plan`: show what the controller would do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import one_line, print_json, print_line, print_table, value_words
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import DryRun, ModelChange
    from controller.schema.status import BlockedView, PlanView

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
    """Show what the controller would do now, or with other files, and why.

    Changes nothing. Exit code 0: nothing to do. 1: the files of --diff have problems. 2: there is something to do, or
    something is blocked. 3: no controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

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
    from controller.config.read import SUFFIXES, is_read

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
    for change in outcome.changes:
        _show_change(change)
    for key in outcome.keys:
        print_line(f"key {key.key}: {key.change}" + (f": {', '.join(key.fields)}" if key.change == "edited" else ""))
    for tool in outcome.tools:
        subject = "tool" if tool.kind == "tool" else "MCP server"
        fields = f": {', '.join(tool.fields)}" if tool.change == "edited" else ""
        print_line(f"{subject} {tool.name}: {tool.change}{fields}")
    for name in outcome.superseded:
        print_line(f"{name}: its runtime declaration would end, the files declare it")
    blocked = outcome.plan.blocked if outcome.plan is not None else []
    if not outcome.changes and not outcome.keys and not outcome.tools:
        print_line("nothing would change" + (", and this would stay blocked:" if blocked else ""))
    _show_blocked(blocked)


def _show_change(change: ModelChange) -> None:
    replica_words = f" {', '.join(change.restarts)}" if change.effect == "restart" else ""
    print_line(f"{change.model}: {change.change}, {EFFECTS[change.effect]}{replica_words}")
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
        rows = [(each.kind, each.model or "", each.replica or "", each.reason) for each in view.actions]
        print_table(("ACTION", "MODEL", "REPLICA", "REASON"), rows)
    _show_blocked(view.blocked)
    if not view.actions and not view.blocked:
        print_line("nothing to do: what runs is what is declared")


def _show_blocked(blocked: Sequence[BlockedView]) -> None:
    if blocked:
        places = [f"{each.model}/{each.index}" if each.index is not None else each.model for each in blocked]
        rows = [(place, one_line(each.reason)) for place, each in zip(places, blocked, strict=True)]
        print_table(("BLOCKED", "REASON"), rows)
