"""Client of the admin API, which the controller serves and a gateway forwards."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from pydantic import JsonValue

from controller.cli.client import ControllerClient, Query, RequestRefusedError
from controller.cli.exit_codes import ExitCode
from controller.cli.sse import SseEvent, SseReader
from controller.schema.admin import AdminModel, AdminModels, Drift, DryRun, GpuMemoryAnswer, History
from controller.schema.status import ModelState, PlanView
from controller.status.rollout import is_rolled_out, is_rollout_blocked

MODELS = "/v1/admin/models"
"""Path of the admin API's models."""
SILENCE_S = 60.0
"""Seconds without data, not even a heartbeat, after which a stream of events counts as broken."""
WAIT_MARGIN_S = 30.0
"""Seconds after the deadline of a waiting request for which an answer may still come."""
ON_THE_WAY = {ModelState.LOADED: ModelState.LOADING, ModelState.UNLOADED: ModelState.UNLOADING}
"""Final state of a transition to the state on the way to it."""
Result = TypeVar("Result")


class Transition(NamedTuple):
    """Result of a load or an unload: DONE, FAILED, or PENDING where it is still going on, and the model's row."""

    verdict: ExitCode
    row: AdminModel


@dataclass(frozen=True, slots=True)
class TransitionGoal:
    """The state in which a load or an unload ends."""

    state: ModelState
    restart: bool = False
    """Whether every replica must also have the values of the load."""

    def judge_row(self, row: AdminModel) -> ExitCode:
        """Return how far the transition is by a model's row: DONE, FAILED or PENDING."""
        if row.runtime_state is not self.state:
            is_failed = self.state is ModelState.LOADED and row.runtime_state is ModelState.FAILED
            return ExitCode.FAILED if is_failed else ExitCode.PENDING
        if not self.restart or is_rolled_out(row.replica_details, row.loaded_replicas, row.replicas):
            return ExitCode.DONE
        return ExitCode.FAILED if is_rollout_blocked(row.last_error, row.blocked) else ExitCode.PENDING


class AdminClient(ControllerClient):
    """Client of one controller, directly or through a gateway. Methods raise the errors of ControllerClient."""

    async def list_models(self) -> AdminModels:
        """Return the rows of all models."""
        return await self._ask("GET", MODELS, AdminModels)

    async def get_model(self, name: str) -> AdminModel:
        """Return the row of a model, by its name or an alias."""
        return await self._ask("GET", model_path(name), AdminModel)

    async def declares_model(self, name: str) -> bool:
        """Return whether a model or an alias of this name is declared. True also where the controller cannot tell
        yet."""
        try:
            await self.get_model(name)
        except RequestRefusedError as error:
            return error.error_code != "unknown_model"
        return True

    async def load_model(
        self, name: str, values: Mapping[str, JsonValue], wait_s: float | None, *, restart: bool = False
    ) -> Transition:
        """Load a model with these values. `wait_s` is the time to wait for the end; None answers at once.

        With `restart`, a model that serves is restarted with the values. A load that failed returns FAILED with the
        reason in `last_error`.
        """
        goal = TransitionGoal(ModelState.LOADED, restart)
        try:
            return await self._change_model(f"{model_path(name)}/load", dict(values), wait_s, goal)
        except RequestRefusedError as error:
            if error.body is None or error.body.code != "model_failed":
                raise
            row = await self.get_model(name)
            if goal.judge_row(row) is ExitCode.DONE:  # the next attempt has succeeded meanwhile
                return Transition(ExitCode.DONE, row)
            reason = row.last_error or error.body.message
            return Transition(ExitCode.FAILED, row.model_copy(update={"last_error": reason}))

    async def unload_model(self, name: str, *, hold: bool, wait_s: float | None) -> Transition:
        """Unload a model. `wait_s` is the time to wait for the end; None answers at once.

        With `hold`, requests do not load an autoload model again.
        """
        goal = TransitionGoal(ModelState.UNLOADED)
        return await self._change_model(f"{model_path(name)}/unload", {"hold": hold}, wait_s, goal)

    async def reset_model(self, name: str) -> AdminModel:
        """Drop the operator's load or unload of a model. Returns the model's row."""
        return await self._ask("DELETE", f"{model_path(name)}/override", AdminModel)

    async def get_plan(self) -> PlanView:
        """Return the plan of the last round; where the controller is paused, what it would do."""
        return await self._ask("GET", "/v1/admin/plan", PlanView)

    async def run_dry_run(self, files: Mapping[str, str]) -> DryRun:
        """Return what these files (name to content) would change in place of the files with their names."""
        return await self._ask("POST", "/v1/admin/plan", DryRun, {"files": dict(files)})

    async def find_drift(self) -> Drift:
        """Return what runs differently from what is declared."""
        return await self._ask("GET", "/v1/admin/drift", Drift)

    async def read_history(
        self, *, model: str | None, kinds: Sequence[str], limit: int, before: int | None = None
    ) -> History:
        """Return entries of the history, newest first. Empty `kinds` means the kinds that change something."""
        query = _query(model=model, kind=kinds, limit=limit, before=before)
        return await self._ask("GET", "/v1/admin/history", History, query=query)

    async def get_gpu_memory(self) -> GpuMemoryAnswer:
        """Return GPU memory, and the estimated memory of each model."""
        return await self._ask("GET", "/v1/admin/gpu-memory", GpuMemoryAnswer)

    async def follow_events(
        self, *, after: int | str, model: str | None = None, kinds: Sequence[str] = ()
    ) -> AsyncGenerator[SseEvent, None]:
        """Yield events after the entry `after` as they happen.

        Ends, or raises LostControllerError, when the connection ends.
        """
        reader = SseReader()
        query, headers = _query(model=model, kind=kinds), {"Last-Event-ID": str(after)}
        chunks = self._chunks("/v1/admin/events", query, headers=headers, silence_s=SILENCE_S)
        async with aclosing(chunks):
            async for chunk in chunks:
                for event in reader.feed_bytes(chunk):
                    yield event

    async def read_logs(self, name: str, *, replica: str | None, lines: int, follow: bool) -> AsyncGenerator[str, None]:
        """Yield text of the engines' logs as it arrives."""
        query = _query(replica=replica, lines=lines, follow="true" if follow else None)
        silence_s = None if follow else self._timeout_s
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        chunks = self._chunks(f"{model_path(name)}/logs", query, headers={}, silence_s=silence_s)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield decoder.decode(chunk)
        yield decoder.decode(b"", final=True)

    async def _change_model(
        self, path: str, body: dict[str, JsonValue], wait_s: float | None, goal: TransitionGoal
    ) -> Transition:
        query = {"wait": "false"} if not wait_s else {"wait": "true", "timeout_s": f"{wait_s:g}"}
        query |= {"restart": "true"} if goal.restart else {}
        timeout_s = None if wait_s is None else wait_s + WAIT_MARGIN_S
        status, content = await self._exchange("POST", path, body, query, timeout_s=timeout_s)
        row = self._parse_answer(AdminModel, content)
        # Status 200 also answers a request for a transition that is already under way.
        is_there = status != 202 and row.runtime_state is not ON_THE_WAY[goal.state]
        return Transition(ExitCode.DONE if is_there else ExitCode.PENDING, row)


def model_path(name: str) -> str:
    """Return the path of a model's routes. A model's name may contain `/`."""
    return f"{MODELS}/{quote(name, safe='/:@')}"


def _query(**values: str | int | Sequence[str] | None) -> Query:
    """Return the query parameters without None and empty values."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def ask_admin(url: str, question: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """Ask the admin API at `url` one question, from a program without an event loop. Returns the answer."""

    async def _asked() -> Result:
        async with AdminClient(url) as client:
            return await question(client)

    return asyncio.run(_asked())
