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
    """Carries the requests of llama-server's router to the controller's admin API. Every method raises RoundhouseError
    with the controller's code, or `controller_unavailable`; `actor` is who asks, for the history. Names are names or
    aliases; `unknown_model` is raised for others. The caller checks access."""

    def __init__(self, admin: AdminRequests, live: LiveRoutes, events: ModelEventLog) -> None:
        """`events` knows the downloads of the models of `live`."""
        self._admin = admin
        self._live = live
        self._events = events

    async def reload_files(self, actor: str) -> None:
        """Have the desired-state files read, and wait a moment until the routing table has what they declare."""
        await self._admin.send_request("POST", "reload", actor=actor)

    async def list_commands(self) -> Mapping[str, list[str]]:
        """Return the command line of each model's engine, by model name. Empty if the controller does not answer."""
        with suppress(RoundhouseError, ValidationError):
            answered = await self._admin.send_request("GET", "commands", within_s=COMMANDS_S)
            return CommandLines.model_validate(answered).models
        return {}

    async def load_model(self, name: str, actor: str) -> None:
        """Begin to load a model."""
        route = find_model(self._live.current, name)
        await self._admin.send_request("POST", f"models/{_path(route)}/load?wait=false", {}, actor=actor)

    async def unload_model(self, name: str, actor: str) -> None:
        """Begin to unload a model, and cancel the download of its files."""
        view = self._view(name)
        target = f"models/{_path(view.route)}/unload?wait=false"
        await self._admin.send_request("POST", target, {"hold": False}, actor=actor)
        await self._cancel_download(view, actor)

    async def download_model(self, reference: str, actor: str) -> None:
        """Declare a model of that name that a request loads, and begin to download its files; or go on with the
        download of a model that is declared already. Raises `state_conflict` if it is loaded, or names no source."""
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
        """Take the runtime declaration of a downloaded model back, end its download, and remove its files; those that
        others use stay.

        Raises `state_conflict` if the model is loaded, `models_file_kept` if its files were not downloaded, or
        `declared_in_files`; nothing is changed then.
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
