"""A fake of the controller's interface: fixed answers on a real socket, for the command line's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from contract.admin import (
    AdminModel,
    AdminModels,
    Capabilities,
    Drift,
    DryRun,
    GpuMemoryAnswer,
    HostDetails,
    HostList,
)
from contract.declarations import DeclarationsView, DeclarationView
from contract.errors import RoundhouseError
from contract.journal import History, JournalEntry
from contract.status import (
    ControllerStatus,
    ModelState,
    ModelStatus,
    PlanView,
    StatementView,
)

GONE = "gone"
"""In `stream`: the connection breaks here."""
FILES = StatementView(kind="file", since=1000.0, reason="enabled in the files")


def model(name: str, state: str = "loaded", *, wanted: int = 1, **more: Any) -> ModelStatus:
    """One model's status; as many replicas are loaded as are wanted if it is."""
    return ModelStatus(
        name=name,
        backend="stub",
        state=ModelState(state),
        wanted_replicas=wanted,
        loaded_replicas=wanted if state == "loaded" else 0,
        statement=FILES,
        **more,
    )


def status(*models: ModelStatus, **more: Any) -> ControllerStatus:
    """A controller's status after its first observation."""
    fields = {"observed_at": 1000.0, "gateways": ["gw-1"], "gpus": [], **more}
    return ControllerStatus(
        instance="abc123", version="0.1.0", runtime="process", generation=3, models=list(models), **fields
    )


def row(name: str, state: str = "loaded", **more: Any) -> AdminModel:
    fields: dict[str, Any] = {
        "resolved_backend": "stub",
        "configured_enabled": True,
        "runtime_state": ModelState(state),
        "is_loaded": state == "loaded",
        "replicas": 1,
        "replica_max": 1,
        "loaded_replicas": 1 if state == "loaded" else 0,
        "inflight_requests": 0,
        "queue_depth": 0,
        "runtime_inflight": 0,
        "configured_target_inflight": 1,
        "effective_target_inflight": 1,
        "last_error": None,
        "exit_code": None,
        "vram_estimate_mib": None,
        "vram_estimate_replica_count": 1,
        "vram_estimate_source": "unavailable",
        "vram_observed_mib": None,
        "vram_warning": None,
        "load_constraints": {},
        "load_recommendations": {},
        "load_override": {},
        "capabilities": Capabilities(),
        "definition": {},
        "aliases": [],
        "statement": FILES,
        "retry_at": None,
        "load_progress": None,
        "blocked": [],
        "held_by": [],
        "replica_details": [],
    }
    return AdminModel(name=name, **(fields | more))


def host(name: str = "", state: str = "ready", **more: Any) -> HostDetails:
    return HostDetails(name=name, state=state, **{"gpus": [], "unread_gpus": [], "gpu_count": 0, **more})


def listed(*rows: AdminModel, **more: Any) -> AdminModels:
    fields: dict[str, Any] = {
        "last_event_id": 0,
        "observed_at": 1000.0,
        "observation_error": None,
        "desired_problems": [],
        "paused": False,
    }
    return AdminModels(models=list(rows), **(fields | more))


def entry(number: int, kind: str = "state", **more: Any) -> JournalEntry:
    """Something that happened, one second after what happened before it."""
    fields = {"at": 1000.0 + number, "model": "chat", "actor": "controller", "message": f"thing {number}"}
    return JournalEntry.model_validate({"id": number, "kind": kind, **fields, **more})


class FakeControlApi:
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, socket: Path) -> None:
        self.url = f"unix:{socket}"
        self.status = status(model("chat"))
        self.plan: PlanView | None = PlanView(generation=3)
        self.requests: list[tuple[str, Any]] = []
        self.raw: web.Response | None = None
        """Answered to everything, where it is set."""
        self.actors: list[str] = []
        """Who asked, question by question."""
        self.changed = asyncio.Event()
        self.rows = [row("chat")]
        self.trouble: dict[str, Any] = {}
        """Of the list of models: what differs from a controller that is well."""
        self.refusal: RoundhouseError | None = None
        """Answered to every question of the admin API that asks for a change."""
        self.row_refusal: RoundhouseError | None = None
        """Answered to questions for one model's row."""
        self.go = asyncio.Event()
        """A waiting load or unload waits for this; what `rows` says then is its answer."""
        self.unfinished = False
        """Loads and unloads are not done when their time is up, whatever the rows say."""
        self.break_waits = False
        """Waiting loads and unloads lose their connection instead."""
        self.dry_run = DryRun(ok=True, problems=[], changes=[], plan=PlanView(generation=3))
        self.drift = Drift(items=[], checked_at=1000.0)
        self.declarations = DeclarationsView(problems=[])
        self.journal: list[JournalEntry] = []
        self.page = 2
        """Most entries of one answer of the history."""
        self.streams: list[list[JournalEntry | str]] = []
        """What each connection to the events sends; GONE breaks it. Without any, one stays silent."""
        self.log: list[bytes | str] = [b"one line\n"]
        self.memory = GpuMemoryAnswer(gpus=[], models=[], error="NVML is not installed")
        self.hosts = HostList(hosts=[host()], is_cut_off=False)
        self._socket = socket

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._note_actor])
        app.router.add_get("/internal/status", self._status)
        app.router.add_post("/internal/pause", self._pause)
        app.router.add_post("/internal/shutdown", self._shutdown)
        app.router.add_get("/v1/admin/plan", self._plan)
        app.router.add_post("/v1/admin/plan", self._dry_run)
        app.router.add_get("/v1/admin/drift", self._drift)
        app.router.add_get("/v1/admin/declarations", self._declarations)
        app.router.add_delete("/v1/admin/declarations/keys/{name}", self._drop_key)
        app.router.add_get("/v1/admin/events", self._events)
        app.router.add_get("/v1/admin/history", self._history)
        app.router.add_get("/v1/admin/gpu-memory", self._gpu_memory)
        app.router.add_get("/v1/admin/hosts", self._hosts)
        app.router.add_post("/v1/admin/hosts/{name}/{verb}", self._change_host)
        app.router.add_get("/v1/admin/models", self._models)
        app.router.add_post("/v1/admin/models/{name:.+}/{verb:load|unload}", self._move)
        app.router.add_delete("/v1/admin/models/{name:.+}/override", self._reset)
        app.router.add_get("/v1/admin/models/{name:.+}/logs", self._logs)
        app.router.add_get("/v1/admin/models/{name:.+}", self._model)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._socket)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    @web.middleware
    async def _note_actor(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.actors.append(request.headers.get("x-roundhouse-actor", ""))
        return await handler(request)

    async def _status(self, _request: web.Request) -> web.Response:
        self.requests.append(("status", None))
        return self.raw or _json(self.status.model_dump_json())

    async def _plan(self, _request: web.Request) -> web.Response:
        self.requests.append(("plan", None))
        if self.plan is None:
            return _error("controller_unavailable", "the controller has not made its first observation yet")
        return self.raw or _json(self.plan.model_dump_json())

    async def _pause(self, request: web.Request) -> web.Response:
        self.requests.append(("pause", await request.json()))
        return self.raw or _json(self.status.model_dump_json())

    async def _shutdown(self, request: web.Request) -> web.Response:
        self.requests.append(("shutdown", await request.json()))
        self.changed.set()
        return self.raw or web.json_response({"stop_engines": True}, status=202)

    async def _dry_run(self, request: web.Request) -> web.Response:
        self.requests.append(("dry_run", await request.json()))
        return _json(self.dry_run.model_dump_json())

    async def _drift(self, _request: web.Request) -> web.Response:
        return _json(self.drift.model_dump_json())

    async def _declarations(self, _request: web.Request) -> web.Response:
        return _json(self.declarations.model_dump_json())

    async def _drop_key(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.requests.append(("drop last key" if request.query.get("last") == "true" else "drop key", name))
        dropped = self.declarations.keys.pop(name)
        return _json(DeclarationView(kind="keys", name=name, **dropped.model_dump()).model_dump_json())

    async def _gpu_memory(self, _request: web.Request) -> web.Response:
        return _json(self.memory.model_dump_json())

    async def _hosts(self, _request: web.Request) -> web.Response:
        self.requests.append(("hosts", None))
        return _json(self.hosts.model_dump_json())

    async def _change_host(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.match_info["verb"], {"name": request.match_info["name"], "body": body}))
        if self.refusal is not None:
            return _refused(self.refusal)
        found = next(each for each in self.hosts.hosts if each.name == request.match_info["name"])
        return _json(found.model_dump_json())

    async def _models(self, _request: web.Request) -> web.Response:
        self.requests.append(("models", None))
        newest = max((each.id for each in self.journal), default=0)
        return _json(listed(*self.rows, last_event_id=newest, **self.trouble).model_dump_json())

    async def _model(self, request: web.Request) -> web.Response:
        self.requests.append(("model", request.match_info["name"]))
        if self.row_refusal is not None:
            return _refused(self.row_refusal)
        found = self._find(request)
        return _unknown(request) if found is None else _json(found.model_dump_json())

    async def _move(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        question = {"name": request.match_info["name"], **request.query, "body": await request.json()}
        self.requests.append((verb, question))
        if self.refusal is not None:
            return _refused(self.refusal)
        if self._find(request) is None:
            return _unknown(request)
        if request.query["wait"] == "true":
            if self.break_waits:
                assert request.transport is not None
                request.transport.abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.go.wait(), float(request.query["timeout_s"]))
        found = self._find(request)
        assert found is not None
        if verb == "load" and found.runtime_state == "failed":
            return _error("model_failed", found.last_error or "")
        end = {"load": "loaded", "unload": "unloaded"}[verb]
        is_done = found.runtime_state == end and not self.unfinished
        return _json(found.model_dump_json(), 200 if is_done else 202)

    async def _reset(self, request: web.Request) -> web.Response:
        self.requests.append(("reset", request.match_info["name"]))
        found = self._find(request)
        return _unknown(request) if found is None else _json(found.model_dump_json())

    async def _history(self, request: web.Request) -> web.Response:
        self.requests.append(("history", dict(request.query)))
        before = int(request.query.get("before", "1000000"))
        most = min(self.page, int(request.query["limit"]))
        older = [
            each
            for each in reversed(self.journal)
            if each.id < before
            and each.model == request.query.get("model", each.model)
            and each.kind in request.query.getall("kind", [each.kind])
        ]
        page = older[:most]
        more = page[-1].id if len(older) > most else None
        return _json(History(entries=page, next_before=more).model_dump_json())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(("events", {**request.query, "last": request.headers.get("Last-Event-ID")}))
        if self.refusal is not None:
            return _refused(self.refusal)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": heartbeat\n\n")
        for each in self.streams.pop(0) if self.streams else ():
            if each == GONE:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(_sse(each))
        await self.changed.wait()
        return response

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(("logs", {"name": request.match_info["name"], **request.query}))
        if self.refusal is not None:
            return _refused(self.refusal)
        response = web.StreamResponse(headers={"content-type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        for each in self.log:
            if isinstance(each, str):
                await self.changed.wait()
            else:
                await response.write(each)
        return response

    def _find(self, request: web.Request) -> AdminModel | None:
        return next((each for each in self.rows if each.name == request.match_info["name"]), None)


def _sse(each: JournalEntry | str) -> bytes:
    if isinstance(each, str):
        return each.encode()
    return f"id: {each.id}\nevent: {each.kind}\ndata: {each.model_dump_json()}\n\n".encode()


def _json(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


def _error(code: str, message: str) -> web.Response:
    return _refused(RoundhouseError(code, message))


def _refused(error: RoundhouseError) -> web.Response:
    return web.Response(body=error.json_bytes(), status=error.entry.status, content_type="application/json")


def _unknown(request: web.Request) -> web.Response:
    return _error("unknown_model", f"No model {request.match_info['name']!r} is declared.")
