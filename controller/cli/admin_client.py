"""The command line's side of the admin API, which the controller serves and a gateway forwards."""

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
SILENCE_S = 60.0
"""A stream of events that sends not even a heartbeat for this long is broken."""
WAIT_MARGIN_S = 30.0
"""A controller that was told to wait answers this much after its deadline, or not at all."""
ON_THE_WAY = {ModelState.LOADED: ModelState.LOADING, ModelState.UNLOADED: ModelState.UNLOADING}
"""By the state where a transition ends, the one until then."""
Result = TypeVar("Result")


class Transition(NamedTuple):
    """What a load or an unload has come to: DONE, FAILED, or PENDING, when it goes on."""

    verdict: ExitCode
    row: AdminModel


@dataclass(frozen=True, slots=True)
class TransitionGoal:
    """What a load or an unload is to end in."""

    state: ModelState
    restart: bool = False
    """Whether every replica must have the values of the load too."""

    def judge_row(self, row: AdminModel) -> ExitCode:
        """DONE, FAILED, or PENDING."""
        if row.runtime_state is not self.state:
            is_failed = self.state is ModelState.LOADED and row.runtime_state is ModelState.FAILED
            return ExitCode.FAILED if is_failed else ExitCode.PENDING
        if not self.restart or is_rolled_out(row.replica_details, row.loaded_replicas, row.replicas):
            return ExitCode.DONE
        return ExitCode.FAILED if is_rollout_blocked(row.last_error, row.blocked) else ExitCode.PENDING


class AdminClient(ControllerClient):
    """Asks one controller, directly or through a gateway."""

    async def list_models(self) -> AdminModels:
        """Every model."""
        return await self._ask("GET", MODELS, AdminModels)

    async def get_model(self, name: str) -> AdminModel:
        """One model."""
        return await self._ask("GET", model_path(name), AdminModel)

    async def declares_model(self, name: str) -> bool:
        """Whether a model or an alias of that name is declared; True also where the controller cannot tell."""
        try:
            await self.get_model(name)
        except RequestRefusedError as error:
            return error.error_code != "unknown_model"
        return True

    async def load_model(
        self, name: str, values: Mapping[str, JsonValue], wait_s: float | None, *, restart: bool = False
    ) -> Transition:
        """Load it with these values; `restart`: also where it serves with others. `wait_s` None: answer at once."""
        goal = TransitionGoal(ModelState.LOADED, restart)
        try:
            return await self._change_model(f"{model_path(name)}/load", dict(values), wait_s, goal)
        except RequestRefusedError as error:
            if error.body is None or error.body.code != "model_failed":
                raise
            row = await self.get_model(name)
            if goal.judge_row(row) is ExitCode.DONE:  # by the next attempt
                return Transition(ExitCode.DONE, row)
            reason = row.last_error or error.body.message
            return Transition(ExitCode.FAILED, row.model_copy(update={"last_error": reason}))

    async def unload_model(self, name: str, *, hold: bool, wait_s: float | None) -> Transition:
        """Unload it. None: answer at once."""
        goal = TransitionGoal(ModelState.UNLOADED)
        return await self._change_model(f"{model_path(name)}/unload", {"hold": hold}, wait_s, goal)

    async def reset_model(self, name: str) -> AdminModel:
        """Back to what the files say."""
        return await self._ask("DELETE", f"{model_path(name)}/override", AdminModel)

    async def get_plan(self) -> PlanView:
        """What would be done."""
        return await self._ask("GET", "/v1/admin/plan", PlanView)

    async def run_dry_run(self, files: Mapping[str, str]) -> DryRun:
        """What these files would do in place of those of their names."""
        return await self._ask("POST", "/v1/admin/plan", DryRun, {"files": dict(files)})

    async def find_drift(self) -> Drift:
        """What runs differently from what is declared."""
        return await self._ask("GET", "/v1/admin/drift", Drift)

    async def read_history(
        self, *, model: str | None, kinds: Sequence[str], limit: int, before: int | None = None
    ) -> History:
        """Entries, the newest first. No kinds: those that change something."""
        query = _query(model=model, kind=kinds, limit=limit, before=before)
        return await self._ask("GET", "/v1/admin/history", History, query=query)

    async def get_gpu_memory(self) -> GpuMemoryAnswer:
        """GPU memory, and what models are estimated to take."""
        return await self._ask("GET", "/v1/admin/gpu-memory", GpuMemoryAnswer)

    async def follow_events(
        self, *, after: int | str, model: str | None = None, kinds: Sequence[str] = ()
    ) -> AsyncGenerator[SseEvent, None]:
        """Events after that one as they happen. Ends, or raises LostControllerError, when the connection does."""
        reader = SseReader()
        query, headers = _query(model=model, kind=kinds), {"Last-Event-ID": str(after)}
        chunks = self._chunks("/v1/admin/events", query, headers=headers, silence_s=SILENCE_S)
        async with aclosing(chunks):
            async for chunk in chunks:
                for event in reader.feed_bytes(chunk):
                    yield event

    async def read_logs(self, name: str, *, replica: str | None, lines: int, follow: bool) -> AsyncGenerator[str, None]:
        """Text of the engines' logs, in pieces as they come."""
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
        # 200 is also said to whoever asks for what is on its way already.
        is_there = status != 202 and row.runtime_state is not ON_THE_WAY[goal.state]
        return Transition(ExitCode.DONE if is_there else ExitCode.PENDING, row)


def model_path(name: str) -> str:
    """The route of a model, whose name may hold `/`."""
    return f"{MODELS}/{quote(name, safe='/:@')}"


def _query(**values: str | int | Sequence[str] | None) -> Query:
    """Those that say something."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def ask_admin(url: str, question: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """One question to the admin API at `url`, from a program that runs no event loop."""

    async def _asked() -> Result:
        async with AdminClient(url) as client:
            return await question(client)

    return asyncio.run(_asked())
