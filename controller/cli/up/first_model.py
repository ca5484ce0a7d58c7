"""Watches a new `up` until its first model is ready, and then prints how to use it."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from controller.cli.admin_client import AdminClient
from controller.cli.exit_codes import CommandError
from controller.cli.up.announce import Announcer
from controller.schema.status import ControllerStatus, ModelState
from controller.schema.tools import REPLICA_PREFIX

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
    """Polls the controller of a new `up`. Prints each failed model once per failure, and for the first model that can
    be used a request to try and hints what to do next; then ends. `gateway_url` is that of the own gateway, whose
    certificate is not verified; `desired` is the folder that is watched."""

    def __init__(self, controller_url: str, gateway_url: str, desired: Path, announcer: Announcer) -> None:
        self._controller_url = controller_url
        self._gateway_url = gateway_url
        self._desired = desired
        self._announcer = announcer
        self._reported_errors: dict[str, str] = {}
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
        return True

    def _print_failures(self, status: ControllerStatus) -> None:
        for model in status.models:
            if model.state is not ModelState.FAILED:
                self._reported_errors.pop(model.name, None)
            elif model.name not in self._reported_errors:
                self._reported_errors[model.name] = model.last_error or "no reason is known"
                self._announcer.print_note(f"{model.name} failed: {self._reported_errors[model.name].splitlines()[0]}")

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
