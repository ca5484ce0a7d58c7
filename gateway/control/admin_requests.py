"""What the gateway itself asks of the controller: loads and unloads on behalf of callers, changes of models by clients
of llama-server's router, and the feed of downloads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from pydantic import JsonValue, ValidationError

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from contract.admin import CommandLines
from contract.downloads import Download, DownloadList
from contract.errors import ERROR_CODES, RoundhouseError
from contract.model_files import InspectedModel
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.control.link import check_token_taken
from gateway.protocols.common.streams import data_of, end_of_events, split_events
from gateway.routing.availability import find_model
from gateway.routing.model_events import ModelEventLog, ModelView
from gateway.routing.table import LiveRoutes

log = logging.getLogger(__name__)


ANSWER_S: Final = 120.0
"""Seconds that an answer may take: a look at what a download will take reads the heads of its files."""


class AdminRequests:
    """Sends admin requests to the controller, and returns the JSON of their answers. The caller has checked the
    client's access. One for a gateway."""

    def __init__(self, controller: ProgramClient) -> None:
        """`controller`: an entered client, which the caller closes."""
        self._controller = controller

    async def send_request(
        self,
        method: str,
        path: str,
        body: dict[str, JsonValue] | None = None,
        *,
        actor: str = "gateway",
        within_s: float = ANSWER_S,
    ) -> Any:
        """Send a request and return the JSON of its answer.

        `path`: below `/v1/admin/`, percent-encoded, with the query. `body`: JSON object to send; None: none is sent.
        `actor`: who asks, for the controller's history. `within_s`: seconds that the whole answer may take.

        Raises:
            RoundhouseError: the controller's own error code, or `internal_error` if the gateway does not know that
                code; `controller_unavailable` if the controller does not answer in time, refuses the gateway's token,
                or answers what is no JSON. The controller may have carried out the request although the code is
                `controller_unavailable`.
        """
        headers = {"x-roundhouse-actor": actor} | ({} if body is None else {"content-type": "application/json"})
        content = b"" if body is None else json.dumps(body).encode()
        async with self._open_answer(method, path, headers, content, within_s) as answer:
            answered = await answer.read_body()
        try:
            return json.loads(answered)
        except ValueError:
            raise RoundhouseError("controller_unavailable", "The controller's answer is no JSON.") from None

    async def fetch_end(
        self, path: str, most_bytes: int, *, actor: str = "gateway", within_s: float = ANSWER_S
    ) -> tuple[bytes, int]:
        """Send a GET request; return the last bytes of the answer's text, and how many bytes before them were left out.

        `path`, `actor`, `within_s`: as for `send_request`. `most_bytes`: most bytes that are returned, above 0.

        Raises:
            RoundhouseError: as `send_request`, other than for an answer that is no JSON.
        """
        end, left_out = b"", 0
        async with self._open_answer("GET", path, {"x-roundhouse-actor": actor}, b"", within_s) as answer:
            while part := await answer.read_part():
                end += part
                if len(end) > 2 * most_bytes:
                    left_out += len(end) - most_bytes
                    end = end[-most_bytes:]
        kept = end[-most_bytes:]
        return kept, left_out + len(end) - len(kept)

    @asynccontextmanager
    async def _open_answer(
        self, method: str, path: str, headers: dict[str, str], content: bytes, within_s: float
    ) -> AsyncIterator[ProgramAnswer]:
        """Give the answer to a request, whose body can be read within the context. Raises as `send_request`."""
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with await self._controller.send_request(
                method, f"/v1/admin/{path}", headers, content, timeout=timeout
            ) as answer:
                check_token_taken(answer)
                if answer.status >= 400:
                    raise _read_error(await answer.read_body())
                yield answer
        except (ProgramGoneError, TimeoutError) as error:
            reason = str(error) or f"no answer within {within_s:g} s"
            message = f"The controller does not answer: {reason}. Inference goes on without it."
            raise RoundhouseError("controller_unavailable", message) from error


def _read_error(body: bytes) -> RoundhouseError:
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        if error["code"] in ERROR_CODES:
            return RoundhouseError(error["code"], error["message"], param=error.get("param"), model=error.get("model"))
    return RoundhouseError("internal_error", "The controller failed on this request.")


LIST_S: Final = 5.0
"""Seconds that the list of downloads may take."""
SILENCE_S: Final = 30.0
"""Seconds of silence after which the events of downloads are followed anew: a controller that is not frozen sends a
heartbeat every 10 s."""
FIRST_PAUSE_S: Final = 0.5
"""Seconds before the first try to follow the downloads again."""
LONGEST_PAUSE_S: Final = 30.0
LONGEST_EVENT: Final = 4 * 1024 * 1024
"""Bytes of an event above which the stream is given up."""


class DownloadFeed:
    """Follows the downloads of the controller as long as `run` runs.

    Calls `on_downloads` with all of them whenever one has changed. A download that the controller has forgotten stays
    as it was seen last until the list is read anew; all stay so while the controller is away.
    """

    def __init__(self, controller: ProgramClient, on_downloads: Callable[[Sequence[Download]], None]) -> None:
        """`controller`: an entered client, which the caller closes. `on_downloads` is called with all downloads:
        whenever `run` has read the list, at the beginning and after each break of the connection, and after each
        change."""
        self._controller = controller
        self._admin = AdminRequests(controller)
        self._on_downloads = on_downloads
        self._downloads: dict[str, Download] = {}

    async def run(self) -> None:
        """Follow the downloads until cancelled, also over restarts of the controller. Never returns. An error of the
        controller, or a ValueError of `on_downloads`, is only logged: the list is read anew after a pause that grows up
        to `LONGEST_PAUSE_S` (30 s). Any other error of `on_downloads` is raised, and ends the feed."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self.refresh_list()
                pause_s = FIRST_PAUSE_S
                await self._follow_events()
            except (RoundhouseError, ProgramGoneError, ValidationError, ValueError, TimeoutError) as error:
                log.debug("the downloads cannot be followed: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def refresh_list(self) -> None:
        """Ask the controller for all downloads, and call `on_downloads` with them. After an error it is not called.

        Raises:
            RoundhouseError: as `AdminRequests.send_request`, for example `downloads_disabled` or
                `controller_unavailable`.
            ValueError: the answer is not a list of downloads (pydantic's ValidationError).
        """
        answered = await self._admin.send_request("GET", "downloads", within_s=LIST_S)
        listed = DownloadList.model_validate(answered).downloads
        self._downloads = {each.id: each for each in listed}
        self._on_downloads(listed)

    async def _follow_events(self) -> None:
        """Tell what changes, until the stream ends."""
        timeout = aiohttp.ClientTimeout(total=None, connect=LIST_S, sock_connect=LIST_S, sock_read=SILENCE_S)
        path = "/v1/admin/downloads/events"
        async with await self._controller.send_request("GET", path, {}, timeout=timeout) as answer:
            check_token_taken(answer)
            held = b""
            while answer.status == 200 and (part := await answer.read_part()):
                held += part
                end = end_of_events(held)
                self._take_events(held[:end])
                held = held[end:]
                if len(held) > LONGEST_EVENT:
                    raise ValueError("an event is too long")

    def _take_events(self, events: bytes) -> None:
        changed = [Download.model_validate_json(data) for each in split_events(events) if (data := data_of(each))]
        news = [each for each in changed if self._downloads.get(each.id) != each]
        if news:
            self._downloads |= {each.id: each for each in news}
            self._on_downloads(list(self._downloads.values()))


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
            RoundhouseError: `unknown_model`, `state_conflict` if the model is loaded, sleeps, is being unloaded, or is
                being loaded while its files are not being downloaded, `models_file_kept` if its files were not
                downloaded, or `declared_in_files`: nothing is changed then. The controller's other codes or
                `controller_unavailable`: a part may be done already.
        """
        view = self._view(name)
        route = view.route
        if route.source is None and not route.is_runtime_declared:
            raise _declared_in_files(route)
        if route.source is None:
            message = f"The files of the model {route.name!r} were not downloaded, and stay."
            raise RoundhouseError("models_file_kept", message, param="model")
        if route.state in (ModelState.LOADED, ModelState.UNLOADING):
            raise _conflict(route, "is loaded: unload it first")
        if route.state is ModelState.SLEEPING:
            raise _conflict(route, "sleeps: unload it first")
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
            raise _declared_in_files(route) from None

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


def _declared_in_files(route: ModelRoute) -> RoundhouseError:
    message = f"The desired-state files declare the model {route.name!r}: edit them."
    return RoundhouseError("declared_in_files", message, param="model")


def _conflict(route: ModelRoute, words: str) -> RoundhouseError:
    return RoundhouseError("state_conflict", f"The model {route.name!r} {words}.", param="model")
