"""`roundhouse status`, `gpu`, `hosts`, `models`, `rm` and `drift`: what there is, and what differs from the
declarations."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import ControllerUrl, Json, State, controller_url
from cli.output import (
    STATE_COLOURS,
    CommandError,
    ExitCode,
    count_words,
    ends_by_unload,
    first_line,
    is_terminal,
    one_line,
    plain_words,
    print_error,
    print_json,
    print_line,
    print_table,
    size_words,
    time_words,
)
from controller.rollout import find_outdated, is_rolled_out, is_rollout_blocked

if TYPE_CHECKING:
    from contract.admin import DriftItem, GpuMemory, GpuMemoryAnswer, GpuModel, ListContext
    from contract.model_files import FileMemory, ModelFile
    from contract.status import ControllerStatus, GpuProcessView, GpuStatus, HostStatus, ModelStatus, UnreadGpuStatus


def warning_lines(status: ControllerStatus | ListContext) -> Iterator[str]:
    """Yield a line for each thing that keeps the controller from its work: it is paused, cannot observe what runs, or
    the files have problems. Yields none while all is well."""
    if status.paused:
        yield "paused: the controller observes and does not act; `roundhouse resume` ends it"
    if status.observation_error:
        since = "" if status.observed_at is None else f" since {time_words(status.observed_at)}"
        yield f"what runs cannot be seen{since}: {one_line(status.observation_error)}"
    for problem in status.desired_problems:
        yield f"{problem} (what was last good rules)"


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
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    async with AdminClient(url) as client:
        return await client.get_status()


async def _wait(url: str, timeout_s: float) -> ControllerStatus:
    """Return the first status that waiting would not change, or the last one in time. Waits for a controller that is
    still starting.

    That none answers is said once on stderr, with what to do. Raises NoControllerError where none answers in time.
    """
    from cli.admin_client import NoControllerError

    loop = asyncio.get_running_loop()
    deadline, is_told = loop.time() + timeout_s, False
    while True:
        is_late = loop.time() >= deadline
        try:
            snapshot = await _ask(url)
        except NoControllerError as error:
            if is_late:
                raise
            if not is_told:
                print_error(f"{error}; waiting for it, {timeout_s:g} s at most")
            is_told = True
        else:
            if is_late or not _may_settle(snapshot):
                return snapshot
        await asyncio.sleep(min(POLL_S, max(0.0, deadline - loop.time())))


def _show(snapshot: ControllerStatus) -> None:
    if snapshot.models:
        _print_models(snapshot.models)
    else:
        print_line("no models are declared" if snapshot.observed_at is not None else "nothing was observed yet")
    if snapshot.hosts:
        print_hosts(snapshot.hosts, is_cut_off=snapshot.is_cut_off)
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
        "BECAUSE": _because(model),
    }


def _because(model: ModelStatus) -> str:
    """Return why the model is as it is: of a failed one the first clause of its error, else what was ordered."""
    if model.state == "failed" and model.last_error:
        return re.split(r"[;.](?:\s|$)|\n", model.last_error, maxsplit=1)[0]
    return model.statement.reason


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


SOURCES = {
    "declared": "declared",
    "observed_load_delta": "measured",
    "predicted": "predicted",
    "model_artifact_size": "the files' size",
    "unavailable": "",
}
"""Source of an estimate to its name in the table."""


def gpu(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Show GPU memory, and the estimated memory of each model.

    On a machine without GPUs the exit code is 0, and the output says why there are no figures. Exit code 3: no
    controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    memory = ask_admin(controller_url(controller, state), lambda client: client.get_gpu_memory())
    if as_json:
        print_json(memory)
    else:
        _show_gpus(memory)
    return ExitCode.DONE


def _show_gpus(memory: GpuMemoryAnswer) -> None:
    if memory.gpus:
        print_table(("GPU", "NAME", "USED", "CLAIMED", "BUSY", "UUID"), [_gpu_row(each) for each in memory.gpus])
        processes = [_process_row(each, process) for each in memory.gpus for process in each.processes or ()]
        if processes:
            print_table(("GPU", "PID", "PROCESS", "USED", "REPLICA"), processes)
    else:
        print_line(f"no GPUs: {memory.error}" if memory.error else "no GPUs")
    for unread_gpu in memory.unread_gpus:
        print_line(unread_gpu_words(unread_gpu))
    if memory.hosts:
        print_hosts(memory.hosts, is_cut_off=memory.is_cut_off)
    if memory.models:
        columns = ("MODEL", "STATE", "ESTIMATE", "REPLICAS", "FROM", "MEASURED")
        print_table(columns, [_memory_row(model) for model in memory.models])
        for model in memory.models:
            if model.vram_warning is not None:
                print_line(f"{model.name}: {model.vram_warning}")
    if memory.driver_version is not None:
        cuda = "" if memory.cuda_version is None else f", which runs CUDA up to {memory.cuda_version}"
        print_line(f"NVIDIA driver {memory.driver_version}{cuda}")


def _gpu_row(gpu: GpuMemory) -> tuple[str, ...]:
    busy = "-" if gpu.utilization_percent is None else f"{gpu.utilization_percent}%"
    return gpu_label(gpu), gpu.name, gpu.used_over_total, f"{gpu.claimed_mib}MiB", busy, gpu.uuid


def _process_row(gpu: GpuMemory, process: GpuProcessView) -> tuple[str, ...]:
    return gpu_label(gpu), str(process.pid), process.name or "-", mib_words(process.used_mib), process.replica or "-"


def gpu_label(gpu: GpuMemory | GpuStatus) -> str:
    """Return the label of a GPU: its index; for a MIG instance, the GPU's index and the instance's number, joined by
    `:`. On a host with a name, that comes first: `b/0`."""
    label = str(gpu.index) if gpu.mig is None else f"{gpu.index}:{gpu.mig}"
    return f"{gpu.host}/{label}" if gpu.host else label


def unread_gpu_words(gpu: UnreadGpuStatus) -> str:
    """Return a line that names a GPU that cannot be read, and says why and how many MiB of it engines claim, if any."""
    return f"{gpu.description}; {gpu.claimed_mib} MiB claimed" if gpu.claimed_mib else gpu.description


def _memory_row(model: GpuModel) -> tuple[str, ...]:
    count = str(model.vram_estimate_replica_count)
    return (
        model.name,
        model.runtime_state.value,
        mib_words(model.vram_estimate_mib),
        count,
        SOURCES[model.vram_estimate_source],
        mib_words(model.vram_observed_mib),
    )


def mib_words(mib: int | None) -> str:
    """Return an amount of memory as the number followed by `MiB`, without a space; `-` for None (unknown)."""
    return "-" if mib is None else f"{mib}MiB"


HOST_COLUMNS: Final = ("NAME", "STATE", "SINCE", "GPUS", "MEMORY", "ENGINES", "VERSION", "LAST HEARD")
HOST_COLOURS: Final = {"ready": "green", "draining": "yellow", "silent": "yellow", "lost": "red", "refused": "red"}
"""State of a host to its colour in tables."""
ONLY_HOST: Final = "this host"
"""Name in tables of the only host of an installation, which has none."""

hosts = typer.Typer(name="hosts", help="Show the hosts; forget one that is gone for good.")


@hosts.callback(invoke_without_command=True)
def list_hosts(
    context: typer.Context, controller: ControllerUrl = None, state: State = None, as_json: Json = False
) -> int:
    """Show the hosts; forget one that is gone for good.

    Exit code 0: every host is ready or drained. 2: one is silent, lost or refused. 3: no controller answers.
    """
    if context.invoked_subcommand is not None:
        # What was said before the subcommand holds for it, too.
        given = {"controller": controller, "state": state, "as_json": as_json}
        context.default_map = {context.invoked_subcommand: {name: value for name, value in given.items() if value}}
        return ExitCode.DONE
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    listing = ask_admin(controller_url(controller, state), lambda client: client.list_hosts())
    if as_json:
        print_json(listing)
    else:
        print_hosts(listing.hosts, is_cut_off=listing.is_cut_off)
    is_well = all(each.state in ("ready", "draining") for each in listing.hosts)
    return ExitCode.DONE if is_well else ExitCode.PENDING


def print_hosts(listed: Sequence[HostStatus], *, is_cut_off: bool) -> None:
    """Print the table of hosts, and below it why they are in their states, and that the controller is cut off."""
    print_table(HOST_COLUMNS, [_host_row(host) for host in listed], HOST_COLOURS)
    for line in host_notes(listed, is_cut_off=is_cut_off):
        print_line(line)


def host_notes(listed: Sequence[HostStatus], *, is_cut_off: bool) -> Iterator[str]:
    """Yield what an operator should read beside a table of hosts: that the controller is cut off, then the reasons."""
    if is_cut_off:
        away = sum(each.state in ("silent", "lost") for each in listed)
        yield f"the controller is cut off: {away} of {len(listed)} hosts do not answer, nothing is moved"
    for host in listed:
        if host.reason is not None:
            yield f"{host_title(host)} is {host.state}: {one_line(host.reason)}"
        if host.is_insecure:
            yield f"{host_title(host)} is reached without TLS: who is in that network reads and changes all it is sent"
        if host.gpu_error is not None and host.name:
            yield f"{host_title(host)}, GPUs: {one_line(host.gpu_error)}"


def host_title(host: HostStatus) -> str:
    """Return a host's name in a sentence: `host b`, or `this host`."""
    return f"host {host.name}" if host.name else ONLY_HOST


def _host_row(host: HostStatus) -> tuple[str, ...]:
    total = "" if host.memory_mib is None else f" of {host.memory_mib}"
    return (
        host.name or ONLY_HOST,
        host.state,
        "-" if host.since is None else time_words(host.since),
        "-" if host.gpu_count is None else str(host.gpu_count),
        f"{host.claimed_mib}{total} MiB claimed",
        str(len(host.engines)),
        host.versions.get("roundhouse", "-"),
        "-" if host.last_heard is None else time_words(host.last_heard),
    )


@hosts.command("forget")
def remove(
    name: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Forget a host that is gone for good.

    What ran there counts as gone at once. Where most hosts are gone, nothing moves before they are forgotten. Exit code
    1: there is no such host, or it answers. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    if not yes:
        if not is_terminal(sys.stdin):
            raise CommandError(f"forgetting host {name} must be confirmed: add --yes", ExitCode.USAGE)
        typer.confirm(f"Forget host {name}? If engines still run there, others run the same beside them.", abort=True)
    forgotten = ask_admin(controller_url(controller, state), lambda client: client.remove_host(name))
    if as_json:
        print_json(forgotten)
    else:
        print_line(f"host {name} is forgotten, with {count_words(len(forgotten.engines), 'engine')}")
    return ExitCode.DONE


_MEMORY_WORDS = {"gpu": "GPU", "host": "main memory"}


def models(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """List what lies in the models folders.

    For each model: its size, whether it was downloaded or put there by hand, which declared models use it, and the
    memory that a replica takes. What no model uses can be served by the command that is printed, or says why it cannot.
    Exit code 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    found = ask_admin(controller_url(controller, state), lambda client: client.list_model_files())
    if as_json:
        print_json(found)
        return ExitCode.DONE
    if not found.models:
        print_error(f"nothing lies in {', '.join(found.folders)}; `roundhouse pull` downloads a model")
        return ExitCode.DONE
    print_table(("PATH", "SIZE", "MEMORY", "USED BY", "FROM"), [_cells(each) for each in found.models])
    for each in found.models:
        if each.serve_as is not None:
            print_error(f"{each.path}: unused; `roundhouse serve {shlex.quote(each.path)}` serves it")
        elif each.reason is not None and each.path.lower().endswith(MODEL_SUFFIXES):
            print_error(f"{each.path}: unused, and cannot be served: {each.reason}")
    if not found.is_complete:
        print_error("there are more files than are listed")
    return ExitCode.DONE


MODEL_SUFFIXES: Final = (".gguf", ".litertlm", ".onnx", ".safetensors")
"""Suffixes of files that people take for models, so that each is told why it is not served."""


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
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

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
    by_model = ", ".join(f"{name}: {_memory_words(each)}" for name, each in row.memory_by_model.items())
    memory = by_model or _memory_words(row)
    return path, size_words(row.size), memory, " ".join(row.used_by) or "-", row.reference or "by hand"


def _memory_words(row: FileMemory) -> str:
    if row.memory_mib is None:
        return "-"
    # The size of the files is without the context.
    least = "over " if row.memory_source == "model_artifact_size" else ""
    return f"{least}{row.memory_mib}MiB {_MEMORY_WORDS[row.memory_on or 'host']}"


COLUMNS = ("MODEL", "REPLICA", "KIND", "FIELD", "DECLARED", "RUNNING", "SINCE", "MESSAGE")
VALUE_WIDTH = 60
"""Maximum width of a value in the table, in characters."""
MESSAGE_WIDTH = 120
"""Maximum width of a message in the table, in characters. `--json` shows the whole message."""


def drift(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Show what runs differently from what the files declare.

    Exit code 0: no drift. 2: drift. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    report = ask_admin(controller_url(controller, state), lambda client: client.find_drift())
    if as_json:
        print_json(report)
    elif report.items:
        print_table(COLUMNS, [_drift_row(item) for item in report.items])
    else:
        print_line("no drift: what runs is what is declared")
    return ExitCode.PENDING if report.items else ExitCode.DONE


def _drift_row(item: DriftItem) -> tuple[str, ...]:
    values = (first_line(plain_words(value), VALUE_WIDTH) for value in (item.declared, item.running))
    message = first_line(item.message, MESSAGE_WIDTH)
    return (item.model, item.replica or "-", item.kind, item.field or "-", *values, time_words(item.since), message)
