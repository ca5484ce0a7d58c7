"""`roundhouse hosts`, `drain` and `undrain`: the hosts of an installation, and moving what runs away from one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from cli.options import ControllerUrl, Json, State, Timeout, controller_url
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    is_terminal,
    one_line,
    print_error,
    print_json,
    print_line,
    print_table,
    time_words,
)

if TYPE_CHECKING:
    from contract.admin import AdminModel, HostDetails
    from contract.status import HostStatus

POLL_S: Final = 0.5
"""Seconds between two looks with --wait."""
COLUMNS: Final = ("NAME", "STATE", "SINCE", "GPUS", "MEMORY", "ENGINES", "VERSION", "LAST HEARD")
HOST_COLOURS: Final = {"ready": "green", "draining": "yellow", "silent": "yellow", "lost": "red", "refused": "red"}
"""State of a host to its colour in tables."""
ONLY_HOST: Final = "this host"
"""Name in tables of the only host of an installation, which has none."""

HostArgument: TypeAlias = Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")]

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
    print_table(COLUMNS, [_row(host) for host in listed], HOST_COLOURS)
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
        if host.gpu_error is not None and host.name:
            yield f"{host_title(host)}, GPUs: {one_line(host.gpu_error)}"


def host_title(host: HostStatus) -> str:
    """Return a host's name in a sentence: `host b`, or `this host`."""
    return f"host {host.name}" if host.name else ONLY_HOST


def _row(host: HostStatus) -> tuple[str, ...]:
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
def forget(
    name: HostArgument,
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
            drained, left = asyncio.run(_wait(url, host, timeout))
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


async def _wait(url: str, name: str, timeout_s: float) -> tuple[HostDetails, list[str]]:
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
            await asyncio.sleep(min(POLL_S, max(0.0, deadline - loop.time())))


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
