"""What clients of llama-server's router change: they load, unload, download and remove models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from pydantic import ValidationError

from controller.schema.admin import CommandLines
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import InspectedModel
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.control.admin_requests import AdminRequests
from gateway.routing.availability import find_model
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ModelEventLog, ModelView

COMMANDS_S: Final = 2.0
"""Seconds that a list of models waits for the command lines."""
_NOT_OURS: Final = frozenset({"models_file_kept", "models_file_in_use", "download_not_found"})
"""Codes of files that stay when their model goes: others use them, or nothing was downloaded yet."""


class RouterChanges:
    """Carries the requests of llama-server's router to the controller's admin API. The caller checks access.

    Names are names or aliases, and `actor` is who asks, for the history. Every method but `list_commands` raises
    RoundhouseError with the controller's code, or `controller_unavailable`: after that one, the controller may have
    carried out the request.
    """

    def __init__(self, admin: AdminRequests, live: LiveRoutes, events: ModelEventLog) -> None:
        """`events` knows the downloads of the models of `live`."""
        self._admin = admin
        self._live = live
        self._events = events

    async def reload_files(self, actor: str) -> None:
        """Have the controller read the desired-state files, and wait for its answer, which comes seconds after a
        change, so that the routing table that results is in force as a rule. Problems of the files raise nothing.

        `actor`: who asks, for the history. Raises RoundhouseError with the controller's code, or
        `controller_unavailable`.
        """
        await self._admin.send_request("POST", "reload", actor=actor)

    async def list_commands(self) -> Mapping[str, list[str]]:
        """Return the command line of each model's engine, its secrets masked, by model name. Waits `COMMANDS_S` (2)
        seconds at most.

        Empty if the controller does not answer in time, or not in the expected form; RoundhouseError is not raised.
        """
        with suppress(RoundhouseError, ValidationError):
            answered = await self._admin.send_request("GET", "commands", within_s=COMMANDS_S)
            return CommandLines.model_validate(answered).models
        return {}

    async def load_model(self, name: str, actor: str) -> None:
        """Begin to load a model, and do not wait for the load. `name`: name or alias. `actor`: who asks, for the
        history.

        Raises:
            RoundhouseError: `unknown_model`, the controller's own code, or `controller_unavailable`, after which the
                load may have begun.
        """
        route = find_model(self._live.current, name)
        await self._admin.send_request("POST", f"models/{_path(route)}/load?wait=false", {}, actor=actor)

    async def unload_model(self, name: str, actor: str) -> None:
        """Begin to unload a model, do not wait for the end, and cancel the download of its files.

        A later request may load the model again. `name`: name or alias. `actor`: who asks, for the history.

        Raises:
            RoundhouseError: `unknown_model`, the controller's own code, or `controller_unavailable`; the unload may
                have begun then, unless the code is `unknown_model`.
        """
        view = self._view(name)
        target = f"models/{_path(view.route)}/unload?wait=false"
        await self._admin.send_request("POST", target, {"hold": False}, actor=actor)
        await self._cancel_download(view, actor)

    async def download_model(self, reference: str, actor: str) -> None:
        """Declare a model with the name `reference` that a request loads, and begin to download its files.

        If a model with that name or alias is declared already, nothing is declared, and only the download of its source
        begins or goes on. `actor`: who asks, for the history.

        Raises:
            RoundhouseError: `state_conflict` if the declared model is loaded or being unloaded, or names no source; the
                controller's own code, or `controller_unavailable`. A declaration whose download did not begin is taken
                back, unless the controller fails at that, too.
        """
        route = self._live.current.names.get(reference)
        if route is not None:
            if route.source is None or route.state in (ModelState.LOADED, ModelState.UNLOADING):
                raise _conflict(route, "is declared already")
            await self._admin.send_request("POST", "downloads", {"reference": route.source}, actor=actor)
            return
        found = await self._inspect(reference, actor)
        path = f"declarations/models/{quote(reference)}"
        await self._admin.send_request("PUT", path, {**found.fields, "enabled": False, "autoload": True}, actor=actor)
        try:
            await self._admin.send_request("POST", "downloads", {"reference": found.inspection.pinned}, actor=actor)
        except RoundhouseError:
            with suppress(RoundhouseError):
                await self._admin.send_request("DELETE", path, actor=actor)
            raise

    async def remove_model(self, name: str, actor: str) -> None:
        """Take back the runtime declaration of a downloaded model, end its download, and remove its files.

        Files that other models use stay. `name`: name or alias. `actor`: who asks, for the history.

        Raises:
            RoundhouseError: `unknown_model`, `state_conflict` if the model is loaded, being unloaded, or being loaded
                while its files are not being downloaded, `models_file_kept` if its files were not downloaded, or
                `declared_in_files`: nothing is changed then. The controller's other codes or `controller_unavailable`:
                a part may be done already.
        """
        view = self._view(name)
        route = view.route
        if route.source is None:
            message = f"The files of the model {route.name!r} were not downloaded, and stay."
            raise RoundhouseError("models_file_kept", message, param="model")
        if route.state in (ModelState.LOADED, ModelState.UNLOADING):
            raise _conflict(route, "is loaded: unload it first")
        if route.state is ModelState.LOADING and view.running_download is None:
            raise _conflict(route, "is being loaded: unload it first")
        await self._drop_declaration(route, actor)
        await self._cancel_download(view, actor)
        try:
            target = f"models/files?model={quote(route.source, safe='')}"
            await self._admin.send_request("DELETE", target, actor=actor)
        except RoundhouseError as error:
            if error.entry.code not in _NOT_OURS:
                raise

    async def _inspect(self, reference: str, actor: str) -> InspectedModel:
        answered = await self._admin.send_request("POST", "downloads/inspect", {"reference": reference}, actor=actor)
        try:
            return InspectedModel.model_validate(answered)
        except ValidationError as error:
            message = "The controller answers in a form that this gateway does not know: start both in one version."
            raise RoundhouseError("controller_unavailable", message) from error

    async def _drop_declaration(self, route: ModelRoute, actor: str) -> None:
        try:
            await self._admin.send_request("DELETE", f"declarations/models/{_path(route)}", actor=actor)
        except RoundhouseError as error:
            if error.entry.code != "unknown_declaration":
                raise
            message = f"The desired-state files declare the model {route.name!r}: edit them."
            raise RoundhouseError("declared_in_files", message, param="model") from None

    async def _cancel_download(self, view: ModelView, actor: str) -> None:
        if view.running_download is None:
            return
        try:
            await self._admin.send_request("DELETE", f"downloads/{view.running_download.id}", actor=actor)
        except RoundhouseError as error:
            if error.entry.code not in _NOT_OURS:
                raise

    def _view(self, name: str) -> ModelView:
        route = find_model(self._live.current, name)
        return self._events.views.get(route.name, ModelView(route))


def _path(route: ModelRoute) -> str:
    return quote(route.name)


def _conflict(route: ModelRoute, words: str) -> RoundhouseError:
    return RoundhouseError("state_conflict", f"The model {route.name!r} {words}.", param="model")
