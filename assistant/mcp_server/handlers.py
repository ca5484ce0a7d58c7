"""The MCP server of a gateway, which comes into being with the first request, and calls of its tools: who may call
which, and what each does, with the controller's admin API, retrieval, or the routing table in force.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from assistant.documents.document_search import DocumentSearch
from assistant.mcp_server.tools import (
    MOST_BYTES,
    TOOLS,
    EventArguments,
    Fields,
    LoadArguments,
    LogArguments,
    ModelArguments,
    NoArguments,
    PullArguments,
    SearchArguments,
    Tool,
    ToolAnswer,
    ToolArguments,
    UnloadArguments,
    answer_error,
    answer_fields,
    cut_log,
)
from common.log_formats import tag_request
from contract.documents import SearchRequest
from contract.errors import RoundhouseError
from contract.status import ModelState
from gateway.control.admin_requests import AdminRequests
from gateway.ingress.access_rules import AdminGate
from gateway.protocols.api_matrix import offered_paths
from gateway.routing.model_events import ModelEventLog, ModelView
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import AsgiApp, Receive, Scope, Send
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)


POLL_S: Final = 0.5
"""Seconds between two looks at a model whose load or unload a call waits for."""
_STATE_FIELDS: Final = (
    *("name", "runtime_state", "is_loaded", "replicas", "loaded_replicas", "load_progress", "inflight_requests"),
    *("last_error", "retry_at", "blocked", "held_by"),
)
"""Of a model's row, what a load or an unload answers."""
_LEFT_OUT: Final = ("load_recommendations",)
"""Of a model's row, what only a user interface needs."""

CALLER_KEY: Final = "tool_caller"
"""Where the state of a request's scope has its `ToolCaller`."""

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Tells the client how far a call is: progress, its total and a sentence. Does nothing if the client did not ask."""


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Who calls tools by one HTTP request: the caller, its name in the history, tenant, address and request id."""

    caller: Caller
    actor: str
    """For the controller's history."""
    tenant: str
    """Whose documents are searched."""
    local_address: str | None
    """The gateway's own IP address on the connection; None: it has none."""
    request_id: str


class ToolHandlers:
    """Carries calls out whose access and arguments were checked. One for a gateway.

    Every handler raises RoundhouseError with the code of what failed, as the HTTP route of the same purpose. Answers
    are cut to `MOST_BYTES`. Loads and unloads alone await `report`, while they wait.
    """

    def __init__(
        self, admin: AdminRequests, documents: DocumentSearch, live: LiveRoutes, events: ModelEventLog
    ) -> None:
        """`events` knows the downloads of the models of `live`."""
        self._admin = admin
        self._documents = documents
        self._live = live
        self._events = events
        self._stopping = asyncio.Event()

    def begin_stop(self) -> None:
        """End all waits for loads and unloads, now and in later calls: they answer the state as it is. Returns at once.
        Call when the gateway stops."""
        self._stopping.set()

    async def list_models(self, by: ToolCaller, _: NoArguments, report: ReportProgress) -> ToolAnswer:
        """Answer the models of the table in force that the caller may see: `models`, a list. Raises RoundhouseError
        `controller_unavailable` before the first table."""
        self._live.check_table()
        views = (view for view in self._events.views.values() if by.caller.may_see_model(view.route))
        return answer_fields({"models": [_describe_model(view) for view in views]})

    async def search_documents(self, by: ToolCaller, asked: SearchArguments, report: ReportProgress) -> ToolAnswer:
        """Answer the passages of the caller's tenant that fit, best first, as `/v1/search` does. Raises RoundhouseError
        `retrieval_disabled`, `retrieval_unavailable`, or what retrieval answers."""
        request = SearchRequest(query=asked.query, top_k=asked.top_k, filter=asked.filter)
        found = await self._documents.search(by.tenant, request, by.request_id, place=None)
        return answer_fields(found.model_dump(exclude_none=True))

    async def get_model(self, by: ToolCaller, asked: ModelArguments, report: ReportProgress) -> ToolAnswer:
        """Answer a model's row of `/v1/admin/models`, without what only a user interface needs. Raises RoundhouseError
        `unknown_model`, `controller_unavailable`."""
        row = await self._ask(by, "GET", f"models/{quote(asked.model)}")
        return answer_fields({name: value for name, value in row.items() if name not in _LEFT_OUT})

    async def get_memory(self, by: ToolCaller, _: NoArguments, report: ReportProgress) -> ToolAnswer:
        """Answer the memory of GPUs and models, as `/v1/admin/gpu-memory`. Raises RoundhouseError
        `controller_unavailable`."""
        return answer_fields(await self._ask(by, "GET", "gpu-memory"))

    async def load_model(self, by: ToolCaller, asked: LoadArguments, report: ReportProgress) -> ToolAnswer:
        """Begin a load, and answer the state once the model is loaded, has failed, `wait_s` is over or the gateway
        stops. The load goes on in any case, also if the call is cancelled.

        Raises:
            RoundhouseError: `model_failed`, with the reason, if the attempt has failed by then and `wait_s` is not 0;
                and those of the route, such as `unknown_model`.
        """
        body = dict(asked.values) | ({} if asked.replicas is None else {"replicas": asked.replicas})
        query = urlencode({"wait": "false", "restart": str(asked.restart).lower()})
        row = await self._ask(by, "POST", f"models/{quote(asked.model)}/load?{query}", body)
        row = await self._follow(by, row, asked.wait_s, (ModelState.LOADED, ModelState.FAILED), report)
        if row["runtime_state"] == ModelState.FAILED and asked.wait_s:
            message = f"The model {row['name']!r} could not be loaded: {row['last_error']}"
            raise RoundhouseError("model_failed", message, param="model", model=str(row["name"]))
        return answer_fields(_describe_state(row))

    async def unload_model(self, by: ToolCaller, asked: UnloadArguments, report: ReportProgress) -> ToolAnswer:
        """Begin an unload, and answer the state once the model is unloaded, `wait_s` is over or the gateway stops. The
        unload goes on in any case. Raises RoundhouseError as the route, such as `unknown_model`."""
        target = f"models/{quote(asked.model)}/unload?wait=false"
        row = await self._ask(by, "POST", target, {"hold": asked.hold})
        row = await self._follow(by, row, asked.wait_s, (ModelState.UNLOADED,), report)
        return answer_fields(_describe_state(row))

    async def get_plan(self, by: ToolCaller, _: NoArguments, report: ReportProgress) -> ToolAnswer:
        """Answer the controller's plan, as `/v1/admin/plan`. Raises RoundhouseError `controller_unavailable`."""
        return answer_fields(await self._ask(by, "GET", "plan"))

    async def list_events(self, by: ToolCaller, asked: EventArguments, report: ReportProgress) -> ToolAnswer:
        """Answer a page of the history, newest first: `events`, and `next_before`, the value of `before` for the next
        page; null: there is none. The next page begins with what did not fit. Raises RoundhouseError as the route."""
        query = [("limit", str(asked.limit)), *(("kind", kind) for kind in asked.kinds or ())]
        query += [] if asked.model is None else [("model", asked.model)]
        query += [] if asked.before is None else [("before", str(asked.before))]
        page = await self._ask(by, "GET", f"history?{urlencode(query)}")
        fields = answer_fields({"events": page["entries"], "next_before": page["next_before"]})
        return (
            fields
            if len(fields.fields["events"]) == len(page["entries"])
            else _shorten_page(fields.fields, page["entries"])
        )

    async def get_logs(self, by: ToolCaller, asked: LogArguments, report: ReportProgress) -> ToolAnswer:
        """Answer the end of the engines' logs: `model`, as asked, and `log`, which alone is the text. Raises
        RoundhouseError as the route, such as `unknown_model`, `unknown_replica`."""
        query = {"lines": str(asked.lines)} | ({} if asked.replica is None else {"replica": asked.replica})
        target = f"models/{quote(asked.model)}/logs?{urlencode(query)}"
        log, left_out = await self._admin.fetch_end(target, MOST_BYTES, actor=by.actor)
        text = cut_log(log, left_out, MOST_BYTES)
        return ToolAnswer({"model": asked.model, "log": text}, text)

    async def pull_model(self, by: ToolCaller, asked: PullArguments, report: ReportProgress) -> ToolAnswer:
        """Begin a download, or find the running one of the same reference, and answer how far it is and what memory the
        model will take. The download goes on by itself. Raises RoundhouseError as `POST /v1/admin/downloads`."""
        return answer_fields(await self._ask(by, "POST", "downloads", {"reference": asked.reference}))

    async def _ask(self, by: ToolCaller, method: str, path: str, body: Fields | None = None) -> Fields:
        answer: Fields = await self._admin.send_request(method, path, body, actor=by.actor)
        return answer

    async def _follow(
        self, by: ToolCaller, row: Fields, wait_s: float, until: tuple[ModelState, ...], report: ReportProgress
    ) -> Fields:
        """Return a model's row once its state is one of `until`, `wait_s` is over or the gateway stops."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while row["runtime_state"] not in until and (waited_s := loop.time() - began_at) < wait_s:
            await report(waited_s, wait_s, _describe_progress(row))
            try:
                async with asyncio.timeout(min(POLL_S, wait_s - waited_s)):
                    await self._stopping.wait()
                break
            except TimeoutError:
                row = await self._ask(by, "GET", f"models/{quote(row['name'])}")
        return row


Handler = Callable[[ToolHandlers, ToolCaller, Any, ReportProgress], Awaitable[ToolAnswer]]

HANDLERS: Final[Mapping[str, Handler]] = {
    "list_models": ToolHandlers.list_models,
    "search_documents": ToolHandlers.search_documents,
    "get_model": ToolHandlers.get_model,
    "get_memory": ToolHandlers.get_memory,
    "load_model": ToolHandlers.load_model,
    "unload_model": ToolHandlers.unload_model,
    "get_plan": ToolHandlers.get_plan,
    "list_events": ToolHandlers.list_events,
    "get_logs": ToolHandlers.get_logs,
    "pull_model": ToolHandlers.pull_model,
}
"""The handler of each tool of `TOOLS`, by name. Its arguments are of the class that the tool names."""


def _describe_model(view: ModelView) -> Fields:
    route, download = view.route, view.running_download
    described: Fields = {
        "name": route.name,
        "state": route.state.value,
        "aliases": list(route.aliases),
        "backend": route.backend,
        "apis": list(offered_paths(route)),
        "modalities": list(route.capabilities.modalities),
        "context_length": route.context_length,
        "autoload": route.autoload,
    }
    if route.state is ModelState.LOADING:
        described["load_progress"] = route.progress
    if download is not None:
        described["download"] = {
            "state": download.state,
            "done_bytes": download.done_bytes,
            "total_bytes": download.total_bytes,
        }
    return described


def _describe_state(row: Fields) -> Fields:
    return {name: row[name] for name in _STATE_FIELDS if name in row}


def _describe_progress(row: Fields) -> str:
    progress = row.get("load_progress")
    percent = "" if progress is None else f", {progress:.0%}"
    return f"{row['name']} is {row['runtime_state']}{percent}"


def _shorten_page(fields: Fields, entries: Sequence[Fields]) -> ToolAnswer:
    """Return a page whose last events did not fit: `next_before` leads to them, and past a first one that is too large
    for any page."""
    last = (fields["events"] or entries)[-1 if fields["events"] else 0]
    return answer_fields({**fields, "next_before": last["id"]})


CALL_S: Final = 180.0
"""Most seconds that a call takes; longer than each request to a program may take, and than a wait."""


class UnknownToolError(Exception):
    """There is no tool of that name. The text is the name."""


class McpToolCalls:
    """Lists and calls the tools of the MCP server, as far as the caller's scopes open them. One for a gateway; used
    from one event loop."""

    def __init__(self, handlers: ToolHandlers, gate: AdminGate, *, call_s: float = CALL_S) -> None:
        """`gate` tells which callers may use what the scope `admin` opens. `call_s`: most seconds of a call."""
        self._handlers = handlers
        self._gate = gate
        self._call_s = call_s
        self._running: set[asyncio.Timeout] = set()
        self._is_ended = False

    def list_tools(self, by: ToolCaller) -> list[Tool]:
        """Return the tools that the caller may call, those of the scope `inference` first."""
        return [tool for tool in TOOLS if self._is_open(by, tool)]

    async def call_tool(self, by: ToolCaller, name: str, arguments: Fields, report: ReportProgress) -> ToolAnswer:
        """Check the caller's scope and the arguments, call a tool, and return its answer.

        Whatever fails is an answer with `is_error`, without traces of the code: also a call that takes longer than
        `call_s` (`request_timeout`) or that `end_all` ended. A load, an unload or a download that the call began goes
        on then, and also where the call is cancelled. `report` is awaited while the call waits.

        Raises:
            UnknownToolError: there is no tool of that name.
        """
        tool = next((each for each in TOOLS if each.name == name), None)
        if tool is None:
            raise UnknownToolError(name)
        try:
            self._gate.authorize_request(by.caller, tool.scope, by.local_address)
            return await self._call_in_time(by, tool, _read_arguments(tool, arguments), report)
        except RoundhouseError as error:
            return answer_error(error, by.request_id)
        except Exception:
            logger.exception("request %s: tool %s failed", by.request_id, name, extra=tag_request(by.request_id))
            return answer_error(RoundhouseError("internal_error", "The gateway failed on this call."), by.request_id)

    def begin_stop(self) -> None:
        """End waits for loads and unloads, now and in later calls: they answer the state as it is. Returns at once.
        Call when the gateway begins to stop."""
        self._handlers.begin_stop()

    def end_all(self) -> None:
        """End every running call, which answers `gateway_stopping`, and return before they have ended. Later calls are
        not ended. Call when the grace period of a stop is over."""
        self._is_ended = True
        for limit in self._running:
            with suppress(RuntimeError):  # it is about to end
                limit.reschedule(asyncio.get_running_loop().time())

    @property
    def count_running(self) -> int:
        """Number of calls that are running."""
        return len(self._running)

    def _is_open(self, by: ToolCaller, tool: Tool) -> bool:
        try:
            self._gate.authorize_request(by.caller, tool.scope, by.local_address)
        except RoundhouseError:
            return False
        return True

    async def _call_in_time(
        self, by: ToolCaller, tool: Tool, arguments: ToolArguments, report: ReportProgress
    ) -> ToolAnswer:
        try:
            async with asyncio.timeout(self._call_s) as limit:
                self._running.add(limit)
                try:
                    return await HANDLERS[tool.name](self._handlers, by, arguments, report)
                finally:
                    self._running.discard(limit)
        except TimeoutError:
            if self._is_ended:
                message = "The gateway was stopped before the call was complete."
                raise RoundhouseError("gateway_stopping", message) from None
            message = f"The call was not complete after {self._call_s:g} s; what it began goes on."
            raise RoundhouseError("request_timeout", message) from None


def _read_arguments(tool: Tool, arguments: Fields) -> ToolArguments:
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or None
        message = f"`{place}`: {first['msg']}." if place else f"The arguments: {first['msg']}."
        raise RoundhouseError("invalid_request", message, param=place) from None


_PROTOCOL: Final = "assistant.mcp_server.protocol"


class ServedTools:
    """Answers MCP requests by `assistant.mcp_server.protocol`, which is imported in a thread with the first one.

    The library takes 23 MiB of memory and most of a second to import, which a gateway without MCP clients saves.
    """

    def __init__(self, calls: McpToolCalls, version: str, most_body_bytes: int) -> None:
        """`version`: of Roundhouse. `most_body_bytes`: largest body of a request."""
        self._calls = calls
        self._version = version
        self._most_body_bytes = most_body_bytes
        self._is_asked = asyncio.Event()
        self._app: asyncio.Future[AsgiApp] | None = None

    async def run(self) -> None:
        """Make the application once a request asks for it, and keep it until this task is cancelled. Where it cannot be
        made, return; every request then raises the reason."""
        await self._is_asked.wait()
        app = self._expect_app()
        try:
            protocol: Any = await asyncio.to_thread(importlib.import_module, _PROTOCOL)
            async with protocol.serve_tools(self._calls, self._version, self._most_body_bytes) as served:
                app.set_result(served)
                await asyncio.Event().wait()  # until the task is cancelled
        except Exception as error:
            if app.done():
                raise
            app.set_exception(error)

    async def serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. `run` must be running. The first one waits until the library is imported.

        `scope["state"]` must have a `ToolCaller` at `CALLER_KEY`. Raises what the import of the library raised.
        Cancelling ends the call.
        """
        self._is_asked.set()
        app = await asyncio.shield(self._expect_app())
        await app(scope, receive, send)

    def _expect_app(self) -> asyncio.Future[AsgiApp]:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
        return self._app
