"""`roundhouse load`, `unload`, `reset`, `pause`, `resume`, `drain` and `undrain`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from cli.options import ControllerUrl, Json, ModelArgument, NoWait, State, Timeout, controller_url, load_fields
from cli.output import (
    CommandError,
    ExitCode,
    clock_words,
    count_words,
    ends_by_reset,
    ends_by_unload,
    one_line,
    print_blocked,
    print_error,
    print_json,
    print_line,
)
from controller.rollout import find_outdated

if TYPE_CHECKING:
    from cli.admin_client import AdminClient, Transition
    from contract.admin import AdminModel, HostDetails


LoadScalar: TypeAlias = str | int | float | bool | None


def load_values(assignments: Sequence[str]) -> dict[str, LoadScalar]:
    """Parse `key=value` texts to values by field name, in their order. Whether the fields exist is not checked.

    Values are read as YAML 1.2, as in the files, so that `on` is a text and `null` is None. Raises CommandError
    (ExitCode.USAGE) for a text without `=` or key, a key given twice, or a value that is no scalar.
    """
    values: dict[str, LoadScalar] = {}
    for each in assignments:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise CommandError(f"--set takes key=value, not {each}", ExitCode.USAGE)
        if key in values:
            raise CommandError(f"--set {key} stands twice", ExitCode.USAGE)
        try:
            values[key] = _scalar(text.strip())
        except ValueError as error:
            raise CommandError(f"--set {key}: {error}", ExitCode.USAGE) from None
    return values


def _scalar(text: str) -> LoadScalar:
    from controller.config.yaml12 import Scalar, read_document, resolve_scalar  # ruamel.yaml

    if not text.startswith(("'", '"')):
        # In a file `#`, `:` and `[` may end a scalar. Here the shell has separated the value already.
        return resolve_scalar(text)
    table, problems = read_document("--set", b"value: " + text.encode("utf-8", "surrogateescape"))
    node = table.get("value") if table is not None else None
    if problems or not isinstance(node, Scalar):
        raise ValueError(problems[0].message if problems else "must be one value")
    return node.value


def load(
    name: ModelArgument,
    set_values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Value of a definition field for this load only, written as in a file; may be repeated.",
            autocompletion=load_fields,
        ),
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, help="Number of replicas for this load.")] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Apply the values also if the model is loaded: its engines are replaced one at a time. A new engine "
            "starts before the old one stops if memory allows both.",
        ),
    ] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Load a model.

    The files stay as they are; `roundhouse reset` returns to what they say. Ctrl-C ends the waiting, not the load. Exit
    code 0: the model is loaded. 1: the load failed, or cannot be done with these values. 2: the model is still loading.
    3: no controller answers.
    """
    values = load_values(set_values or ())
    if replicas is not None:
        if "replicas" in values:
            raise CommandError("--replicas and --set replicas: say it once", ExitCode.USAGE)
        values["replicas"] = replicas
    try:
        wait_s = None if no_wait else timeout
        transition = asyncio.run(_load(controller_url(controller, state), name, values, wait_s, restart))
    except KeyboardInterrupt:
        way_out = ends_by_reset(name) if restart else ends_by_unload(name)
        print_error(f"{name} goes on loading; {way_out}")
        return ExitCode.INTERRUPTED
    if as_json:
        print_json(transition.row)
    _print_load(transition, as_json)
    return transition.verdict


async def _load(url: str, name: str, values: dict[str, LoadScalar], wait_s: float | None, restart: bool) -> Transition:
    from cli.admin_client import AdminClient, TransitionGoal  # aiohttp takes 150 ms
    from cli.following import wait_for_transition
    from contract.status import ModelState

    async with AdminClient(url) as client:
        await _check_fields(client, name, values)
        request = client.load_model(name, values, wait_s, restart=restart)
        if wait_s is None:
            return await request
        goal = TransitionGoal(ModelState.LOADED, restart)
        return await wait_for_transition(client, name, request, goal, wait_s)


async def _check_fields(client: AdminClient, name: str, values: dict[str, LoadScalar]) -> None:
    """Raise CommandError (USAGE) for a field that no load of the model may set, with the name that was perhaps
    meant."""
    if not values:
        return
    from controller.config.messages import suggest_name

    known = ["replicas", *(await client.get_model(name)).load_constraints]
    for field in values:
        if len(known) > 1 and field not in known:
            raise CommandError(f"--set {field}: no load of {name} sets it{suggest_name(field, known)}", ExitCode.USAGE)


def _print_load(transition: Transition, as_json: bool) -> None:
    row = transition.row
    if transition.verdict is ExitCode.FAILED:
        for line in failure_lines(row):
            print_error(line)
    elif not as_json:
        print_line(f"{row.name}: {_state_words(transition)}")
        print_blocked(row)


def _state_words(transition: Transition) -> str:
    row = transition.row
    state, replicas = row.runtime_state.value, count_words(row.replicas, "replica")
    if state == "loaded" and transition.verdict is ExitCode.PENDING:
        new_count = row.loaded_replicas - len(list(find_outdated(row.replica_details)))
        has = "has" if new_count == 1 else "have"
        return f"restarting, it serves meanwhile, {new_count} of {replicas} {has} the new values"
    words = "still loading" if state == "loading" else state if state == "loaded" else f"not loaded yet, now {state}"
    return f"{words}, {row.loaded_replicas} of {replicas} ready"


def failure_lines(row: AdminModel) -> Iterator[str]:
    """Yield lines that say why the load of a model failed (`row.last_error`), whether it is tried again, and what else
    blocks it. The first line may contain line breaks: the engine's last log lines."""
    error, retry = row.last_error or "no reason is known", _retry_words(row)
    verdict = "serves with the values of before, the new ones failed" if row.is_loaded else "failed"
    is_one_line = "\n" not in error  # else the engine's log lines follow, and the retry gets a line of its own
    yield (
        f"{row.name} {verdict}: {error.removesuffix('.')}; {retry}"
        if retry and is_one_line
        else f"{row.name} {verdict}: {error}"
    )
    if retry and not is_one_line:
        yield f"{row.name}: {retry}"
    yield from (f"{row.name}: {one_line(reason)}" for reason in row.blocked if reason != row.last_error)


def _retry_words(row: AdminModel) -> str | None:
    way_out = ends_by_reset(row.name) if row.is_loaded else ends_by_unload(row.name)
    if row.retry_at is not None:
        return f"tried again at {clock_words(row.retry_at)} ({way_out})"
    if row.is_loaded:
        return way_out
    # The next attempt may have begun before this row was read.
    return f"it is tried again now ({ends_by_unload(row.name)})" if row.runtime_state == "loading" else None


SHOWN_REQUESTS = 10
"""Maximum number of running requests that are listed."""


def unload(
    name: ModelArgument,
    free: Annotated[
        bool,
        typer.Option("--free", help="Only free the memory. The next request to an `autoload` model loads it again."),
    ] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 300.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Unload a model, or cancel its load.

    Running requests finish; none is killed. Ctrl-C ends the waiting, not the unload. Exit code 0: the model is
    unloaded. 1: it cannot be unloaded. 2: it is still unloading; the requests that it waits for are shown. 3: no
    controller answers.
    """
    wait_s = None if no_wait else timeout
    try:
        transition = asyncio.run(_unload(controller_url(controller, state), name, not free, wait_s))
    except KeyboardInterrupt:
        print_error(f"{name} goes on unloading; `roundhouse load {name}` loads it again afterwards")
        return ExitCode.INTERRUPTED
    if as_json:
        print_json(transition.row)
    else:
        _print_unload(transition)
    return transition.verdict


async def _unload(url: str, name: str, hold: bool, wait_s: float | None) -> Transition:
    from cli.admin_client import AdminClient, TransitionGoal  # aiohttp takes 150 ms
    from cli.following import wait_for_transition
    from contract.status import ModelState

    async with AdminClient(url) as client:
        request = client.unload_model(name, hold=hold, wait_s=wait_s)
        return await (
            request
            if wait_s is None
            else wait_for_transition(client, name, request, TransitionGoal(ModelState.UNLOADED), wait_s)
        )


def _print_unload(transition: Transition) -> None:
    row = transition.row
    if transition.verdict is ExitCode.DONE:
        # With --free, a request may already be loading the model again.
        return_words = "" if row.runtime_state == "unloaded" else f"; by now it is {row.runtime_state.value}"
        print_line(f"{row.name}: unloaded{return_words}")
        return
    state = row.runtime_state.value
    state_words = "still unloading" if state == "unloading" else f"not unloaded yet, now {state}"
    print_line(f"{row.name}: {state_words}{_holder_words(row)}")
    for each in row.held_by[:SHOWN_REQUESTS]:
        waited_s = max(0, round(time.time() - each.since))
        print_line(f"  request {each.request_id} in {each.replica}, for {waited_s} s, through {each.gateway}")
    if len(row.held_by) > SHOWN_REQUESTS:
        print_line(f"  and {len(row.held_by) - SHOWN_REQUESTS} more")
    print_blocked(row)


def _holder_words(row: AdminModel) -> str:
    if not row.held_by:
        return ""
    return f"; it waits for {count_words(len(row.held_by), 'running request')}:"


def reset(name: ModelArgument, controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Take back what load and unload said of a model.

    From then on only the files say what it should be, and, with `autoload`, the requests. A model of which neither was
    said stays as it is. Exit code 1: there is no such model. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    row = ask_admin(controller_url(controller, state), lambda client: client.reset_model(name))
    if as_json:
        print_json(row)
    else:
        print_line(f"{row.name}: as the files say ({row.statement.reason}); now {row.runtime_state.value}")
    return ExitCode.DONE


def pause(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make the controller observe, never act.

    It stays so over restarts, until `roundhouse resume`. Engines run on, and serve. Exit code 3: no controller answers.
    """
    return _set(True, controller_url(controller, state), as_json)


def resume(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Make a paused controller act again. One that is not paused stays as it is, which is no error. Exit code 3: no
    controller answers."""
    return _set(False, controller_url(controller, state), as_json)


def _set(paused: bool, url: str, as_json: bool) -> int:
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    ask_admin(url, lambda client: client.set_paused(paused))
    if as_json:
        print_json({"paused": paused})
    else:
        print_line("paused: the controller observes and does not act" if paused else "resumed: the controller acts")
    return ExitCode.DONE


HostArgument: TypeAlias = Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")]
HOST_POLL_S: Final = 0.5
"""Seconds between two looks of `drain --wait`."""


def drain(
    host: HostArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no engine runs there.")] = False,
    timeout: Timeout = 600.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Start nothing more on a host, and move what runs there.

    Running requests finish. It stays so over restarts, until `roundhouse undrain`. Ctrl-C ends the waiting, not the
    drain. Exit code 0: the host is drained, with --wait also empty. 1: no other host is ready, or there is no such
    host. 2: with --wait, engines still run there. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    url = controller_url(controller, state)
    drained = ask_admin(url, lambda client: client.drain_host(host, is_drained=True))
    left: list[str] = []
    if wait:
        try:
            drained, left = asyncio.run(_wait_for_empty(url, host, timeout))
        except KeyboardInterrupt:
            print_error(f"host {host} goes on draining; `roundhouse undrain {host}` takes it back")
            return ExitCode.INTERRUPTED
    if as_json:
        print_json(drained)
    else:
        count = len(drained.engines)
        print_line(f"host {host}: drained, " + (f"{count_words(count, 'engine')} left" if count else "and empty"))
        for line in left:
            print_line(f"  {line}")
    return ExitCode.PENDING if wait and drained.engines else ExitCode.DONE


async def _wait_for_empty(url: str, name: str, timeout_s: float) -> tuple[HostDetails, list[str]]:
    """Return the host once no engine runs there or the time is over, and what is left with the reasons. Says on stderr
    what is left whenever that changes. Raises CommandError where the host is gone, or its drain was taken back."""
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms

    loop = asyncio.get_running_loop()
    deadline, told = loop.time() + timeout_s, None
    async with AdminClient(url) as client:
        while True:
            listing, models = await asyncio.gather(client.list_hosts(), client.list_models())
            host = next((each for each in listing.hosts if each.name == name), None)
            if host is None:
                raise CommandError(f"host {name} is gone")
            if host.state == "ready":
                raise CommandError(f"the drain of host {name} was taken back")
            left = list(describe_left(host, models.models))
            if not host.engines or loop.time() >= deadline:
                return host, left
            if left != told:
                print_error(f"host {name}: {'; '.join(left)}")
                told = left
            await asyncio.sleep(min(HOST_POLL_S, max(0.0, deadline - loop.time())))


def describe_left(host: HostDetails, models: Sequence[AdminModel]) -> Iterator[str]:
    """Yield a line for each engine that still runs on a host: its state, its requests, and what keeps it there."""
    replicas = {replica.name: (model, replica) for model in models for replica in model.replica_details}
    for name in host.engines:
        if name not in replicas:
            yield f"{name}: of a model that is no longer declared"
            continue
        model, replica = replicas[name]
        inside = "" if not replica.inflight else f", {count_words(replica.inflight, 'running request')}"
        reasons = "".join(f"; {one_line(reason)}" for reason in model.blocked)
        yield f"{name}: {replica.phase}{inside}{reasons}"


def undrain(host: HostArgument, controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Let engines be started on a host again.

    What moved stays where it is. A host that is not drained stays as it is. Exit code 1: there is no such host. 3: no
    controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    view = ask_admin(controller_url(controller, state), lambda client: client.drain_host(host, is_drained=False))
    if as_json:
        print_json(view)
    else:
        print_line(f"host {host}: not drained, {view.state}")
    return ExitCode.DONE
