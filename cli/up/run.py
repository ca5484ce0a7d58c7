"""Which programs `roundhouse up` starts, how, their whole run, its first start, and engines that nobody looks after."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import aiohttp

from cli.admin_client import AdminClient
from cli.options import own_gateway_url
from cli.output import CommandError, ExitCode
from cli.up import supervisor
from cli.up.supervisor import (
    Announcer,
    Child,
    ChildRecorder,
    ChildSpec,
    Ending,
    FatalExit,
    Supervisor,
    find_children,
    lock_state,
    mark_specs,
    remove_record,
)
from common.atomic_write import is_open_to_others
from common.listening import split_listen_address
from common.settings import KNOWN_VARIABLES, RETRIEVAL_VARIABLES, TRANSFERS_VARIABLES
from contract.status import ControllerStatus, ModelState
from contract.tools import REPLICA_PREFIX
from controller.runtimes import end_replicas, open_runtime
from controller.runtimes.base import RuntimeUnavailableError
from controller.settings import ControllerSettings
from controller.state_dir import StateDir, StateError, StateLockedError

FIRST_POLL_S: Final = 0.2
"""Seconds between the first two requests for the status."""
LAST_POLL_S: Final = 2.0
"""Maximum seconds between two requests for the status."""
KEY_WANTED: Final = 401
"""Status of a gateway's answer to a request without a key, where keys are declared."""
PROGRAM: Final = "roundhouse"
REAL_MODEL_LINE: Final = f"For a real model: `{PROGRAM} pull ggml-org/gemma-3-4b-it-GGUF:Q4_K_M --as gemma --declare`."
"""One line that says how to download a real model and declare it."""
DEMO_MODELS: Final = frozenset({"clockwork", "clockwork-embed"})
"""Models that the desired-state folder of a checkout declares."""
EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/embeddings": {"input": "Hello"},
}
"""API path to the body of an example request, the preferred API first."""


class FirstModelWatcher:
    """Polls the controller of a new `up`. Prints each model that failed or cannot be loaded once, and for the
    first model that can be used a request to try and hints what to do next; then ends. `gateway_url` is that of the own
    gateway, whose certificate is not verified; `desired` is the folder that is watched."""

    def __init__(self, controller_url: str, gateway_url: str, desired: Path, announcer: Announcer) -> None:
        self._controller_url = controller_url
        self._gateway_url = gateway_url
        self._desired = desired
        self._announcer = announcer
        self._reported_events: dict[str, str] = {}
        self._is_empty_reported = False

    async def run(self) -> None:
        """Poll until a model can be used and was announced, without a time limit: the caller cancels it. A controller
        or gateway that does not answer is asked again. Raises CommandError where the controller's address is not
        valid."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            AdminClient(self._controller_url) as controller,
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as gateway,
        ):
            # The controller sends no notice of a change, so poll: often in the first seconds, then less and less.
            pause_s = FIRST_POLL_S
            while not await self._check_models(controller, gateway):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.05, LAST_POLL_S)

    async def _check_models(self, controller: AdminClient, gateway: aiohttp.ClientSession) -> bool:
        try:
            status = await controller.get_status()
        except CommandError:
            return False  # the controller is starting or restarting; the supervisor reports that
        self._print_failures(status)
        status = without_servers(status)
        if not any(model.state is ModelState.LOADED for model in status.models):
            self._print_empty(status)
            return False
        choice = await self._find_served(gateway, status)
        if choice is None:
            return False
        name, api = choice
        self._announcer.print_result("ready", try_line(name, api, self._gateway_url), model=name, url=self._gateway_url)
        if has_only_demo(each.name for each in status.models):
            self._announcer.print_result("hint", REAL_MODEL_LINE)
        if shutil.which(PROGRAM) is None:
            in_checkout = (Path(sys.prefix).parent / "Makefile").is_file()
            program = Path(sys.executable).with_name(PROGRAM)
            self._announcer.print_result("hint", commands_line(program, Path.cwd(), in_checkout=in_checkout))
        await self._print_page(gateway)
        return True

    async def _print_page(self, gateway: aiohttp.ClientSession) -> None:
        """Print where the page is, or that it is not built; nothing where the gateway serves none."""
        url = f"{self._gateway_url}/"
        try:
            async with gateway.head(url, ssl=False) as response:
                is_served, is_built = response.status == 200, "etag" in response.headers
        except (aiohttp.ClientError, TimeoutError):
            return
        if is_built:
            self._announcer.print_result("page", f"The page is at {url}", url=url)
        elif is_served:
            self._announcer.print_note(f"the page is not built: `make page` builds it, and {url} has it then")

    def _print_failures(self, status: ControllerStatus) -> None:
        for model in status.models:
            if model.state is ModelState.FAILED:
                event, error = "failed", model.last_error or "no reason is known"
            elif model.state is ModelState.UNLOADED and model.blocked:
                event, error = "is not loaded", model.blocked[0]
            else:
                self._reported_events.pop(model.name, None)
                continue
            if self._reported_events.get(model.name) != event:
                self._reported_events[model.name] = event
                self._announcer.print_note(f"{model.name} {event}: {error.splitlines()[0]}")

    def _print_empty(self, status: ControllerStatus) -> None:
        is_empty = status.observed_at is not None and not any(model.wanted_replicas for model in status.models)
        if is_empty and not self._is_empty_reported and not status.desired_problems:
            self._announcer.print_note(
                f"no model is to be loaded; {self._gateway_url} answers, and {self._desired} is watched"
            )
            self._is_empty_reported = True

    async def _find_served(
        self, gateway: aiohttp.ClientSession, status: ControllerStatus
    ) -> tuple[str, str | None] | None:
        """Return a loaded model and an API path that it serves, as the gateway lists them. None means none yet.

        The API path is None where the gateway requires a key, because `up` has none.
        """
        try:
            async with gateway.get(f"{self._gateway_url}/v1/models", ssl=False) as response:
                if response.status == KEY_WANTED:
                    return next(model.name for model in status.models if model.state is ModelState.LOADED), None
                models = (await response.json())["data"] if response.status == 200 else []
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
            return None
        return choose_first_model(models)


def without_servers(status: ControllerStatus) -> ControllerStatus:
    """Return the status without the MCP servers that the controller runs, which no request can name as a model."""
    models = [model for model in status.models if not model.name.startswith(REPLICA_PREFIX)]
    return status.model_copy(update={"models": models})


def choose_first_model(models: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the id of the first loaded model with the most preferred API path, and that path. `models` is the
    gateway's list of models. Chat completions are preferred to completions, these to embeddings (`EXAMPLES`).

    None means none yet: no loaded model has an API in `EXAMPLES`, or a model with a more preferred one is still
    loading.
    """
    for api in EXAMPLES:
        candidates = [model for model in models if api in model.get("apis", ())]
        for model in candidates:
            if model.get("state") == ModelState.LOADED:
                return str(model["id"]), api
        if any(model.get("state") == ModelState.LOADING for model in candidates):
            return None
    return None


def try_line(name: str, api: str | None, url: str) -> str:
    """Return one line that says that the model `name` is ready, with a `curl` command to paste into a shell. `api`: a
    path in `EXAMPLES`; None: the gateway requires a key. `url`: the gateway's, without a path."""
    if api is None:
        return f"{name} is ready. Try, with a key: curl {url}/v1/models -H 'authorization: Bearer rh-...'"
    body = json.dumps({"model": name, **EXAMPLES[api]})
    return f"{name} is ready. Try: curl {url}{api} -H 'content-type: application/json' -d '{body}'"


def has_only_demo(names: Iterable[str]) -> bool:
    """Return whether all `names` of declared models are the demo's (`clockwork`, `clockwork-embed`); True also for
    none."""
    return DEMO_MODELS.issuperset(names)


def commands_line(program: Path, folder: Path, *, in_checkout: bool) -> str:
    """Return one line that says how to run the other commands from `folder`, where PATH does not have the program.

    `in_checkout`: the program is in the environment that the Makefile has made.
    """
    short_path = program.relative_to(folder) if program.is_relative_to(folder) else program
    launcher = f"; `make install-launcher` puts `{PROGRAM}` on PATH" if in_checkout else ""
    return f"Other commands: `{shlex.quote(str(short_path))} status` and so on{launcher}."


@dataclass(frozen=True, slots=True)
class SideProgram:
    """A program without which the others go on. Its `name` is also that of its Python package, and of the extra that
    installs what it needs."""

    name: str
    packages: tuple[str, ...]
    """Modules of its extra, which it cannot start without."""
    missing_note: str
    """What does not work without the packages, for the operator."""
    is_wanted: Callable[[ControllerSettings], bool]
    without: Mapping[str, object]
    """Settings, by field name, of an `up` that does not start it."""
    variables: Callable[[ControllerSettings, Mapping[str, str]], dict[str, str]]
    """Returns its environment, from the settings and the environment of the other programs."""
    given_up: Mapping[int, FatalExit] = field(default_factory=dict)
    """Exit codes of its first start after which it is not started again."""


CLEAN_VARIABLES: Final = frozenset(
    {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
"""Variables of this process that `transfers` gets, which talks to strangers: none that may hold a secret."""


def program_socket(settings: ControllerSettings, name: str) -> Path:
    """Return the path of a program's socket: beside the controller's, whose path an operator may have chosen to be
    short, else in the state folder."""
    address = split_listen_address(settings.listen)
    return (address.parent if isinstance(address, Path) else settings.state) / f"{name}.sock"


def drop_programs_without_packages(settings: ControllerSettings, announcer: Announcer) -> ControllerSettings:
    """Return the settings without the programs whose packages are not installed. `announcer` prints a note for each,
    which says what to install."""
    for program in SIDE_PROGRAMS:
        if program.is_wanted(settings) and any(find_spec(name) is None for name in program.packages):
            announcer.print_note(
                f"{program.missing_note}: `pip install 'roundhouse[{program.name}]'` brings what is missing"
            )
            settings = settings.model_copy(update=dict(program.without))
    return settings


def _retrieval_variables(_settings: ControllerSettings, env: Mapping[str, str]) -> dict[str, str]:
    others = KNOWN_VARIABLES - RETRIEVAL_VARIABLES
    return {name: value for name, value in env.items() if name not in others}


def _transfers_variables(_settings: ControllerSettings, env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in CLEAN_VARIABLES | TRANSFERS_VARIABLES}


SIDE_PROGRAMS: Final = (
    SideProgram(
        name="retrieval",
        packages=("qdrant_edge", "pypdfium2", "python_multipart"),
        missing_note="no documents are served",
        is_wanted=lambda settings: settings.retrieval,
        without={"retrieval": False},
        variables=_retrieval_variables,
    ),
    SideProgram(
        name="transfers",
        packages=("huggingface_hub", "httpx2", "starlette"),
        missing_note="no models are downloaded",
        is_wanted=lambda settings: settings.downloads != "off",
        without={"downloads": "off"},
        variables=_transfers_variables,
        given_up={4: FatalExit(ExitCode.LOCKED, "another Roundhouse downloads into the same models folder")},
    ),
)
"""`service run` and `down` end them in this order, after the gateway and before the controller; `up` ends them at the
same time as the controller."""
RAY_NODE: Final = "ray node"
"""Name of the program that keeps Ray running on a machine of several hosts. It ends last: the controller needs it."""
PROGRAMS_IN_END_ORDER: Final = ("gateway", *(program.name for program in SIDE_PROGRAMS), "controller", RAY_NODE)
"""All programs of an `up`. The gateway ends first, because its running requests need the others."""


CONTROLLER_ENDS: Final = {
    2: FatalExit(ExitCode.USAGE, "a setting is wrong"),
    3: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken"),
    4: FatalExit(ExitCode.LOCKED, "the state folder is in use; `roundhouse down` ends what uses it"),
    5: FatalExit(ExitCode.FAILED, "the runtime does not answer"),
}
"""Exit codes of the first controller process of an `up` that end everything."""
GATEWAY_ENDS: Final = {
    2: FatalExit(ExitCode.USAGE, "a setting is wrong"),
    3: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken; choose another with --host or --port"),
}
"""Exit codes of the first gateway process of an `up` that end everything."""


def program_specs(settings: ControllerSettings, environ: Mapping[str, str]) -> list[ChildSpec]:
    """Return how to start the controller, the gateway and the side programs that the settings want, in this order:
    command line, environment, and the exit codes that end everything. The environment is `environ` with the `settings`
    in it, or what a side program needs of that. Starts and imports none of the programs."""
    retrieval, transfers = (f"unix:{program_socket(settings, each.name)}" for each in SIDE_PROGRAMS)
    env = {
        **environ,
        "ROUNDHOUSE_DESIRED": str(settings.desired),
        "ROUNDHOUSE_STATE": str(settings.state),
        "ROUNDHOUSE_MODELS": str(settings.models),
        "ROUNDHOUSE_RUNTIME": settings.runtime,
        "ROUNDHOUSE_HOSTS": settings.model_dump(include={"hosts"})["hosts"],
        "ROUNDHOUSE_HOST": settings.host,
        "ROUNDHOUSE_PORT": str(settings.port),
        "ROUNDHOUSE_CONTROLLER_LISTEN": settings.listen,
        "ROUNDHOUSE_CONTROLLER_URL": settings.controller_url,
        "ROUNDHOUSE_RETRIEVAL": str(settings.retrieval).lower(),
        "ROUNDHOUSE_RETRIEVAL_LISTEN": retrieval,
        "ROUNDHOUSE_RETRIEVAL_URL": retrieval,
        "ROUNDHOUSE_DOWNLOADS": settings.downloads or "",
        "ROUNDHOUSE_TRANSFERS_LISTEN": transfers,
        "ROUNDHOUSE_TRANSFERS_URL": transfers,
        "ROUNDHOUSE_GATEWAY_URL": own_gateway_url(settings),
    }
    # -P: do not import a folder `controller` that happens to be in the current folder.
    python = (sys.executable, "-P", "-m")
    specs = [
        ChildSpec("controller", (*python, "controller"), env, CONTROLLER_ENDS),
        ChildSpec("gateway", (*python, "gateway"), env, GATEWAY_ENDS),
    ]
    specs.extend(
        ChildSpec(each.name, (*python, each.name), each.variables(settings, env), each.given_up, dies_alone=True)
        for each in SIDE_PROGRAMS
        if each.is_wanted(settings)
    )
    return specs


def lock_and_check(state: Path) -> int:
    """Lock the state folder for this `up`. Return a file descriptor that holds the lock until the caller closes it.

    Raises CommandError with ExitCode.LOCKED where another `up` holds the lock, or programs of an earlier `up` still
    run; the lock is then free again. Raises CommandError also where the folder or the record cannot be used.
    """
    lock = lock_state(state)
    try:
        live_children = [
            f"{name} (process {child.pid})" for name in PROGRAMS_IN_END_ORDER for child in find_children(state, name)
        ]
    except CommandError:
        os.close(lock)
        raise
    if live_children:
        os.close(lock)
        message = f"an earlier `roundhouse up` left its {' and '.join(live_children)}; `roundhouse down` ends that"
        raise CommandError(message, ExitCode.LOCKED)
    return lock


class SupervisedRun:
    """A run of the programs of `specs` under one supervisor. Making one raises OSError without the state folder."""

    def __init__(self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer) -> None:
        self._settings = settings
        self._announcer = announcer
        recorder = ChildRecorder(settings.state, announcer)
        marked_specs = mark_specs(settings.state, specs)
        self._supervisor = Supervisor(marked_specs, say=announcer.print_note, on_change=recorder.record_children)
        self._stop_event = asyncio.Event()

    def hold_listeners(self, listeners: Sequence[socket.socket]) -> None:
        """Have each process of the gateway listen at these sockets, which stay open here. Call before the start."""
        self._supervisor.children["gateway"].listeners = listeners

    async def _wait_or_kill(self, child: Child, within_s: float) -> bool:
        """Return whether the child had to be killed."""
        quiet_s = min(supervisor.UP_SAID_S, within_s)
        if await child.ends_within(quiet_s):
            return False
        if (left_s := within_s - quiet_s) > 0:
            self._announcer.print_note(f"waiting for {child.spec.title} to end, {left_s:g} s more at most")
            if await child.ends_within(left_s):
                return False
        is_gateway = child.spec.name == "gateway"
        loss = "its running requests are cut off" if is_gateway else "nothing that it accepted is lost"
        self._announcer.print_note(f"{child.spec.title} did not end within {within_s:g} s and is killed; {loss}")
        child.kill()
        return True


class UpRun(SupervisedRun):
    """One run of `up`: starts, supervises and ends the programs. The caller holds the lock of the state folder until
    `run` has returned. Making one raises OSError where the state folder does not exist."""

    def __init__(self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer) -> None:
        super().__init__(settings, specs, announcer)
        self._force_event = asyncio.Event()
        self._left_engines = False
        """Whether the controller was killed while it ended its engines."""

    async def run(self) -> ExitCode:
        """Run until Ctrl-C, SIGTERM or SIGHUP, or until a program ends in a way that a restart cannot mend. Then end
        the gateway, after it the side programs and, with its engines, the controller, and kill what does not end in
        time: all of that within 40 s (`UP_ENDS_S`) and the gateway's grace period for running requests. Return the exit
        code of `up`: DONE after a signal or where a program was told to end, else that of the program's `FatalExit`;
        FAILED in place of DONE where engines may still run. Raises OSError where the record cannot be removed at the
        end.

        A second Ctrl-C kills the programs without waiting. Call it once, in the main thread: it takes over the signal
        handlers.
        """
        state = self._settings.state
        if is_open_to_others(state):
            self._announcer.print_note(f"other users of this host may look into {state}: `chmod 700 {state}`")
        if not (state / IDENTITY_NAME).exists():
            self._announcer.print_note(f"a new installation begins in {state}: nothing of an earlier one is there")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        settings = self._settings
        watcher = FirstModelWatcher(
            settings.controller_url, own_gateway_url(settings), settings.desired, self._announcer
        )
        watch_task = asyncio.create_task(watcher.run())
        ending = await self._supervisor.run(self._stop_event)
        watch_task.cancel()
        if ending.words is not None:
            self._announcer.print_note(f"{ending.words}; stopping everything")
        code = await self._end(ending)
        [watch_error] = await asyncio.gather(watch_task, return_exceptions=True)
        if isinstance(watch_error, Exception):
            self._announcer.print_note(f"nobody watched for the first model: {watch_error!r}")
        self._announcer.print_note("stopped")
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop_event.is_set():
            self._stop_event.set()
            self._announcer.print_note("stopping: running requests may finish; Ctrl-C again does not wait")
        elif number is signal.SIGINT:
            # Only a second Ctrl-C means that the operator wants no waiting. A closed terminal window sends SIGHUP twice
            # (shell and kernel), and SIGTERM may come from `down`, which waits.
            self._force_event.set()

    async def _end(self, ending: Ending) -> ExitCode:
        """End the programs in order, or kill them after a second Ctrl-C. Then stop the engines that are left."""
        self._stop_event.set()
        orderly_task = asyncio.create_task(self._end_in_order())
        forced_task = asyncio.create_task(self._force_event.wait())
        await asyncio.wait([orderly_task, forced_task], return_when=asyncio.FIRST_COMPLETED)
        forced_task.cancel()
        if not orderly_task.done():
            self._announcer.print_note("forced: killing the programs, then stopping the engines")
            orderly_task.cancel()
            with suppress(asyncio.CancelledError):
                await orderly_task
            for child in self._supervisor.children.values():
                child.kill()
        else:
            orderly_task.result()
        await self._supervisor.wait_until_ended()
        return await self._end_engines(ending)

    async def _end_in_order(self) -> None:
        # The gateway first, because its running requests need the others.
        children = self._supervisor.children
        if (gateway := children.get("gateway")) is not None:
            gateway.send_signal(signal.SIGTERM)
            await self._wait_or_kill(gateway, supervisor.up_gateway_timeout_s())
        side_programs = [children[program.name] for program in SIDE_PROGRAMS if program.name in children]
        for child in side_programs:
            child.send_signal(signal.SIGTERM)
        waits = [self._wait_or_kill(child, supervisor.UP_PROGRAMS_S) for child in side_programs]
        await asyncio.gather(*waits, self._end_controller())
        if (node := children.get(RAY_NODE)) is not None:
            node.send_signal(signal.SIGTERM)
            await self._wait_or_kill(node, supervisor.RAY_ENDS_S)

    async def _end_controller(self) -> None:
        controller = self._supervisor.children.get("controller")
        if controller is None or controller.pid is None:
            return
        asking = asyncio.create_task(self._ask_to_end(controller))
        try:
            self._left_engines = await self._wait_or_kill(controller, supervisor.UP_PROGRAMS_S)
        finally:
            asking.cancel()

    async def _ask_to_end(self, controller: Child) -> None:
        grace_s = min(self._settings.stop_timeout_s, supervisor.UP_ENGINES_S)
        try:
            async with AdminClient(self._settings.controller_url) as client:
                await client.shut_down(stop_engines=True, engines_grace_s=grace_s)
        except CommandError:
            # The controller does not listen yet, or no longer. Engines that it leaves are stopped afterwards.
            controller.send_signal(signal.SIGTERM)

    async def _end_engines(self, ending: Ending) -> ExitCode:
        """Stop engines that the controller left running. After a controller that ended as asked there are none."""
        longest_s = supervisor.FORCED_S if self._force_event.is_set() else supervisor.UP_ENGINES_S
        grace_s = supervisor.UP_LEFT_S if self._left_engines else min(self._settings.stop_timeout_s, longest_s)
        locked_by_another = ending.exit is ExitCode.LOCKED
        if not locked_by_another:
            try:
                engine_names = await stop_orphans(self._settings, grace_s=grace_s, lock_wait_s=supervisor.FORCED_S)
            except CommandError as error:
                self._announcer.print_note(f"engines may still run ({error}): `roundhouse down` stops them")
                return ending.exit or ExitCode.FAILED
            if engine_names:
                self._announcer.print_note(f"stopped what the controller left: {', '.join(engine_names)}")
        remove_record(self._settings.state)
        return ending.exit


IDENTITY_NAME = "identity.json"
_LOCK_POLL_S = 0.1
"""Seconds between two tries to lock the state folder."""


async def stop_orphans(settings: ControllerSettings, *, grace_s: float, lock_wait_s: float) -> list[str]:
    """Stop and remove every replica of this installation (the instance that the state folder names), and return the
    replicas' names. Empty where nothing ran, or where the state folder names no instance.

    `grace_s`: seconds from SIGTERM to SIGKILL of each engine. Waits up to `lock_wait_s` seconds for the lock of the
    state folder, which a controller holds until it has ended, and holds it meanwhile. Raises CommandError where the
    folder cannot be used or stays locked (ExitCode.LOCKED), where a runtime that is set explicitly cannot be opened, or
    where a runtime fails while engines are stopped.
    """
    if not (settings.state / IDENTITY_NAME).exists():
        return []
    if settings.is_ray:  # which has ended: this machine's engines are left
        settings = settings.model_copy(update={"hosts": ()})
    store = await _wait_for_state_dir(settings.state, settings.instance, lock_wait_s)
    try:
        # Engines of one runtime are still there when `auto` now chooses the other.
        kinds = ("process", "docker") if settings.runtime == "auto" and not settings.hosts else (settings.runtime,)
        return [name for kind in kinds for name in await _stop_all(settings, store.instance, kind, grace_s)]
    finally:
        store.close()


async def _wait_for_state_dir(state: Path, instance: str | None, wait_s: float) -> StateDir:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        try:
            return StateDir.open_folder(state, instance)
        except StateLockedError as error:
            if loop.time() >= deadline:
                raise CommandError(str(error), ExitCode.LOCKED) from None
        except StateError as error:
            raise CommandError(str(error)) from None
        await asyncio.sleep(_LOCK_POLL_S)


async def _stop_all(settings: ControllerSettings, instance: str, kind: str, grace_s: float) -> list[str]:
    try:
        runtime = await open_runtime(settings.model_copy(update={"runtime": kind}), instance)
    except RuntimeUnavailableError as error:
        if settings.runtime == "auto":
            return []
        raise CommandError(f"the {kind} runtime cannot be asked what runs: {error}") from None
    try:
        return await end_replicas(runtime, grace_s)
    except RuntimeUnavailableError as error:
        raise CommandError(f"the {kind} runtime does not answer: {error}") from None
    finally:
        await runtime.close()
