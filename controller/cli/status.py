"""`roundhouse status`: show what runs and what is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.gpu import gpu_label, unread_gpu_words
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import (
    STATE_COLOURS,
    count_words,
    ends_by_unload,
    one_line,
    print_json,
    print_line,
    print_table,
    time_words,
)
from controller.cli.settings import controller_url
from controller.status.rollout import find_outdated, is_rolled_out, is_rollout_blocked

if TYPE_CHECKING:
    from controller.schema.status import ControllerStatus, ModelStatus

POLL_S = 0.3
"""Seconds between two requests with --wait."""
ROW_NAMES: Final = {
    "state": "runtime_state",
    "backend": "resolved_backend",
    "progress": "load_progress",
    "replicas": "replica_details",
}
"""Field of a model's status, deprecated in the output, to the field of a row that says the same."""


def status(
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until every wanted model serves as declared, until one failed, or until only edits are left "
            "that cannot be applied.",
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Maximum time that --wait waits.")
    ] = 600.0,
) -> int:
    """Show what runs, what is wanted, and why they differ.

    Exit code 0: every wanted model serves as declared. 1: a model failed, the files have problems, or the runtime
    cannot be seen. 2: something is loading, or a model does not serve as declared, for example because an edit cannot
    be applied. 3: no controller answers.
    """
    url = controller_url(controller, state)
    snapshot = asyncio.run(_wait(url, timeout) if wait else _ask(url))
    if as_json:
        print_json(status_as_json(snapshot))
    else:
        _show(snapshot)
    return exit_code_of(snapshot)


def exit_code_of(snapshot: ControllerStatus) -> ExitCode:
    """Return the exit code for a status.

    FAILED: a wanted model failed, the files have problems, or what runs cannot be observed. Otherwise PENDING: nothing
    was observed yet, or a wanted model does not serve as declared with all its replicas. Otherwise DONE.
    """
    wanted_models = [model for model in snapshot.models if model.wanted_replicas > 0]
    if (
        snapshot.desired_problems
        or snapshot.observation_error
        or any(model.state == "failed" for model in wanted_models)
    ):
        return ExitCode.FAILED
    if snapshot.observed_at is None or not all(map(_serves_as_declared, wanted_models)):
        return ExitCode.PENDING
    return ExitCode.DONE


def _serves_as_declared(model: ModelStatus) -> bool:
    """Return whether all wanted replicas serve with the declared definition."""
    return (
        model.state == "loaded"
        and not model.last_error
        and is_rolled_out(model.replicas, model.loaded_replicas, model.wanted_replicas)
    )


def _may_settle(snapshot: ControllerStatus) -> bool:
    """Return whether the status is pending, and something is under way that may change that.

    An edit that cannot be applied is tried again, as a failed load is; `--wait` waits for neither.
    """
    if exit_code_of(snapshot) is not ExitCode.PENDING:
        return False
    unsettled = [model for model in snapshot.models if model.wanted_replicas > 0 and not _serves_as_declared(model)]
    return snapshot.observed_at is None or not all(map(_has_blocked_edit, unsettled))


def _has_blocked_edit(model: ModelStatus) -> bool:
    """Return whether the model serves, and nothing is under way that would make it serve as declared."""
    return model.state == "loaded" and is_rollout_blocked(model.last_error, model.blocked)


async def _ask(url: str) -> ControllerStatus:
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        return await client.get_status()


async def _wait(url: str, timeout_s: float) -> ControllerStatus:
    """Return the first status that waiting would not change, or the last one in time. Waits for a controller that is
    still starting.

    Raises NoControllerError where no controller answers in time.
    """
    from controller.cli.client_errors import NoControllerError

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        is_late = loop.time() >= deadline
        try:
            snapshot = await _ask(url)
        except NoControllerError:
            if is_late:
                raise
        else:
            if is_late or not _may_settle(snapshot):
                return snapshot
        await asyncio.sleep(min(POLL_S, max(0.0, deadline - loop.time())))


def _show(snapshot: ControllerStatus) -> None:
    if snapshot.models:
        _print_models(snapshot.models)
    else:
        print_line("no models are declared" if snapshot.observed_at is not None else "nothing was observed yet")
    for gpu in snapshot.gpus or ():
        print_line(
            f"GPU {gpu_label(gpu)} {gpu.name}: {gpu.used_mib} of {gpu.total_mib} MiB used, {gpu.claimed_mib} claimed"
        )
    for unread_gpu in snapshot.unread_gpus:
        print_line(unread_gpu_words(unread_gpu))
    for line in (*_access_lines(snapshot), *_notes(snapshot)):
        print_line(line)


def _print_models(models: Sequence[ModelStatus]) -> None:
    """Print the table of models, with a column of aliases where a model has any."""
    rows = [_row(model) for model in models]
    columns = ["MODEL", "ALIASES", "STATE", "READY", "BACKEND", "BECAUSE"]
    if not any(model.aliases for model in models):
        columns.remove("ALIASES")
    print_table(columns, [[row[column] for column in columns] for row in rows], STATE_COLOURS)


def _row(model: ModelStatus) -> dict[str, str]:
    """Return the cells by column."""
    return {
        "MODEL": model.name,
        "ALIASES": ", ".join(model.aliases) or "-",
        "STATE": model.state.value,
        "READY": f"{model.loaded_replicas}/{model.wanted_replicas}",
        "BACKEND": model.backend,
        "BECAUSE": model.statement.reason,
    }


def _access_lines(snapshot: ControllerStatus) -> Iterator[str]:
    """Yield lines that say where clients reach the models, and with which keys."""
    if snapshot.gateway_addresses:
        yield f"gateway: {', '.join(snapshot.gateway_addresses)}"
    if snapshot.keys or snapshot.expired_keys:
        expired = f"; expired: {', '.join(snapshot.expired_keys)}" if snapshot.expired_keys else ""
        yield f"keys in force: {', '.join(snapshot.keys) or 'none'}{expired}"
    elif snapshot.gateway_addresses:
        yield "no keys are declared"


def _notes(snapshot: ControllerStatus) -> Iterator[str]:
    """Yield lines that an operator should read beside the table."""
    from controller.cli.warnings import warning_lines

    yield from warning_lines(snapshot)
    if snapshot.unsaved:
        yield f"the state folder cannot be written; a restart would not know: {', '.join(snapshot.unsaved)}"
    for model in snapshot.models:
        if model.last_error:
            yield f"{model.name}: {_error_words(model, model.last_error)}"
        yield from (f"{model.name}: {reason}" for reason in model.blocked if reason != model.last_error)
        if model.retry_at is not None:
            yield f"{model.name}: tried again at {time_words(model.retry_at)}{_way_out(model)}"
        yield from (f"{model.name}: {sentence}" for sentence in model.drift)
        if model.vram_warning is not None:
            yield f"{model.name}: {model.vram_warning}"
    if snapshot.gpus is None:
        yield "GPUs: unknown, they cannot be read now"
    if not snapshot.gateways:
        yield "no gateway is connected"
    yield from snapshot.refused_gateways


def _error_words(model: ModelStatus, error: str) -> str:
    """Return a model's error, after what of the model serves nevertheless."""
    if not model.loaded_replicas:
        return error
    outdated_count = len(list(find_outdated(model.replicas)))
    if outdated_count:
        serving = "serves" if outdated_count >= model.loaded_replicas else _serving_words(outdated_count, model)
        waiting = "the load or the edit" if model.statement.kind == "load" else "the edit"
        return f"{serving} the old definition; {waiting} waits: {one_line(error)}"
    if model.loaded_replicas < model.wanted_replicas:
        return f"{_serving_words(model.loaded_replicas, model)}; what keeps the rest: {one_line(error)}"
    return f"serves; the last error: {one_line(error)}"


def _serving_words(count: int, model: ModelStatus) -> str:
    """Return how many replicas serve: `1 of 2 replicas serves`."""
    return f"{count} of {count_words(model.wanted_replicas, 'replica')} {'serves' if count == 1 else 'serve'}"


def _way_out(model: ModelStatus) -> str:
    """Return the hint by which an operator ends further attempts without stopping what serves."""
    if not model.loaded_replicas:
        return f"; {ends_by_unload(model.name)}"
    if not any(find_outdated(model.replicas)):
        return ""
    way_out = "another edit ends that"
    return f"; `roundhouse reset {model.name}` or {way_out}" if model.statement.kind == "load" else f"; {way_out}"


def status_as_json(snapshot: ControllerStatus) -> dict[str, Any]:
    """Return the status as JSON for scripts. Fields of models that the admin API names differently (`ROW_NAMES`) are
    there under both names, the deprecated and the new one; `is_loaded` is added to each model."""
    fields = snapshot.model_dump(mode="json")
    for model in fields["models"]:
        model |= {row_name: model[name] for name, row_name in ROW_NAMES.items()}
        model["is_loaded"] = model["runtime_state"] == "loaded"
    return fields
