"""The command line's questions to a controller, and how they fail, in its words.

It asks the admin API, which a gateway forwards, and the internal routes.
"""

from __future__ import annotations

import asyncio
import codecs
import getpass
import json
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, JsonValue, ValidationError
from yarl import URL

from cli.output import CommandError, ExitCode, explain_error, one_line
from common.internal_tokens import LINK_TOKEN
from common.program_client import ProgramAddress, ProgramAnswer, ProgramClient, ProgramGoneError
from common.sse import SseEvent, SseReader
from contract.admin import AdminModel, AdminModels, Drift, DryRun, GpuMemoryAnswer, HostDetails, HostList
from contract.declarations import DeclarationKind, DeclarationsView, DeclarationView
from contract.downloads import Download, DownloadList, Removal, SearchOrder
from contract.errors import ErrorBody, ErrorEnvelope
from contract.journal import History
from contract.model_files import (
    FileDeclaration,
    FileDeclarationOrder,
    InspectedModel,
    ModelDownloadOrder,
    ModelFileList,
    ModelSearch,
    OrderedDownload,
)
from contract.status import ControllerStatus, ModelState, PlanView
from controller import __version__
from controller.rollout import is_rolled_out, is_rollout_blocked

_NAME_MISMATCHES: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class NoControllerError(CommandError):
    """No controller listens at the address, or none answers in time. A controller that did not answer in time may have
    carried out the request; so may one whose answer broke off (LostControllerError, a subclass). Exit code
    NO_CONTROLLER; `reason` in words."""

    words = "no controller answers at {url} ({reason}); `roundhouse up` starts one"
    socket_words = ", or, if it runs with another state folder, name that: --state DIR or ROUNDHOUSE_STATE"
    """Appended for a socket, which lies in a state folder."""

    def __init__(self, url: str, reason: str) -> None:
        words = self.words + (self.socket_words if url.startswith("unix:") else "")
        super().__init__(words.format(url=url, reason=reason), ExitCode.NO_CONTROLLER)
        self.reason = reason


class LostControllerError(NoControllerError):
    """The connection ended, or nothing came any more, before the end of the controller's answer. The controller may
    have carried out the request."""

    words = "the controller at {url} went away before the end of its answer ({reason})"
    socket_words = ""


class RequestRefusedError(CommandError):
    """The controller or a gateway answered with an error. `status`: HTTP status, 400 or above. `body`: the error as the
    answer says it; None: the body was not one of Roundhouse's errors. Exit code FAILED."""

    def __init__(self, status: int, body: ErrorBody | None) -> None:
        super().__init__(f"the controller refused: {describe_error(status, body)}")
        self.status = status
        self.body = body

    @property
    def error_code(self) -> str | None:
        """The error's code as the answer has it (`contract.errors.ERROR_CODES` lists the controller's); None
        where `body` is None."""
        return self.body.code if self.body is not None else None


@contextmanager
def translate_failures(url: str, within_s: float) -> Iterator[None]:
    """Context manager that raises a CommandError in place of ProgramGoneError and TimeoutError in the block; other
    errors pass.

    NoControllerError: nobody answers, or not in time. LostControllerError: the connection ended, or was silent too
    long. Plain CommandError: TLS failed. `within_s`: the seconds that the requests were given, for the message.
    """
    try:
        yield
    except ProgramGoneError as gone:
        raise _explain_failure(url, within_s, gone.__cause__) from None
    except TimeoutError as error:
        raise _explain_failure(url, within_s, error) from None


def _explain_failure(url: str, within_s: float, error: BaseException | None) -> CommandError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return LostControllerError(url, f"nothing came for {within_s:g} s")
    if isinstance(error, TimeoutError):
        return NoControllerError(url, f"no answer within {within_s:g} s")
    if isinstance(error, aiohttp.ClientSSLError):
        return CommandError(_tls_words(url, error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoControllerError(url, error.strerror or str(error))
    if isinstance(error, aiohttp.ClientPayloadError):
        return LostControllerError(url, "the connection ended")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return LostControllerError(url, reason)


def _tls_words(url: str, error: aiohttp.ClientSSLError) -> str:
    """Return what is wrong with the TLS of an address, and what to do."""
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else None
    if not isinstance(cause, ssl.SSLCertVerificationError):
        reason = error.strerror or str(error)
        return f"no TLS with {url} ({reason}): where plain HTTP is served, the address begins with http://"
    advice = (
        "ask by a name or an address that it is for"
        if cause.verify_code in _NAME_MISMATCHES
        else "set SSL_CERT_FILE to a file that holds it, or its CA's"
    )
    return f"the certificate of {url} is not trusted ({cause.verify_message.rstrip('.')}): {advice}"


def read_error(content: bytes) -> ErrorBody | None:
    """Return the error in the body of an answer; None: the body is not one of Roundhouse's errors. Raises nothing."""
    try:
        return ErrorEnvelope.model_validate_json(content).error
    except ValidationError:
        return None


def describe_error(status: int, body: ErrorBody | None, retry_after_s: int | None = None) -> str:
    """Return the error in one line: what is wrong, where, and what to do first. `status`: of HTTP. `body` None: the
    answer has none of Roundhouse's errors. `retry_after_s`: the answer's Retry-After, if it has one."""
    if body is None:
        return f"HTTP status {status}"
    message, steps = explain_error(
        one_line(body.message), body.code, body.next_steps, {**body.model_dump(), "retry_after_s": retry_after_s}
    )
    if body.param is not None and body.param not in message:
        message = f"{body.param}: {message}"
    return f"{message.rstrip('.')}. {steps[0]}" if steps else message


MODELS = "/v1/admin/models"
"""Path of the admin API's models."""
HOSTS: Final = "/v1/admin/hosts"
DECLARATIONS: Final = "/v1/admin/declarations"
"""Path of the admin API's runtime declarations."""
DOWNLOADS: Final = "/v1/admin/downloads"
"""Path of the admin API's downloads."""
MODEL_FILES: Final = "/v1/admin/models/files"
"""Path of what lies in the models folders."""
SOURCE_S: Final = 240.0
"""Seconds for an answer that needs the source of a download, and the heads of its files."""
FILES_S: Final = 600.0
"""Seconds for an answer that needs the model files themselves."""
KEY_VARIABLE: Final = "ROUNDHOUSE_KEY"
"""Environment variable with the secret of a key of scope `admin`, for the address of a gateway."""
ACTOR_HEADER: Final = "x-roundhouse-actor"
"""Names who asks, for the controller's history. A gateway puts its own word there."""
TIMEOUT_S: Final = 10.0
STREAM_START_S: Final = 30.0
"""Seconds to wait for the headers of a stream, which a gateway may hold back for a while."""
SILENCE_S = 60.0
"""Seconds without data, not even a heartbeat, after which a stream of events counts as broken."""
WAIT_MARGIN_S = 30.0
"""Seconds after the deadline of a waiting request for which an answer may still come."""
ON_THE_WAY = {ModelState.LOADED: ModelState.LOADING, ModelState.UNLOADED: ModelState.UNLOADING}
"""Final state of a transition to the state on the way to it."""
Query: TypeAlias = Mapping[str, str | int | Sequence[str]]
Answer = TypeVar("Answer", bound=BaseModel)
Result = TypeVar("Result")


class Transition(NamedTuple):
    """Result of a load or an unload: `verdict` DONE, FAILED, or PENDING where it is still going on, and the model's row
    of the admin API as the controller answered last."""

    verdict: ExitCode
    row: AdminModel


@dataclass(frozen=True, slots=True)
class TransitionGoal:
    """The state in which a load or an unload ends, and the judgement whether a model has reached it."""

    state: ModelState
    restart: bool = False
    """Whether every replica must also run with the values of the load."""

    def judge_row(self, row: AdminModel) -> ExitCode:
        """Return how far the transition is by the model's row: DONE, FAILED or PENDING.

        FAILED: a load failed, or with `restart` the new values cannot be applied. An unload is never FAILED.
        """
        if row.runtime_state is not self.state:
            is_failed = self.state is ModelState.LOADED and row.runtime_state is ModelState.FAILED
            return ExitCode.FAILED if is_failed else ExitCode.PENDING
        if not self.restart or is_rolled_out(row.replica_details, row.loaded_replicas, row.replicas):
            return ExitCode.DONE
        return ExitCode.FAILED if is_rollout_blocked(row.last_error, row.blocked) else ExitCode.PENDING


class AdminClient:
    """Asks one controller, directly or through a gateway. Use it as an async context manager; requests outside of it
    fail.

    Every request raises NoControllerError where nobody answers in time, LostControllerError (a NoControllerError) where
    the connection ends before the answer, RequestRefusedError where the controller answers with an error, and
    CommandError where its TLS fails, the address is not valid, or what answers is no controller of this version. No
    request is tried again: after a NoControllerError, the controller may have carried it out.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is `unix:<path>` or `http://host:port` (or https). `timeout_s`: seconds to wait for an answer, where a
        method has no time of its own. Raises CommandError for another kind of address. Reads the gateway's token file
        and `ROUNDHOUSE_KEY` from the environment."""
        token_file = os.environ.get(LINK_TOKEN.variable)
        try:
            address = ProgramAddress.parse(url, Path(token_file) if token_file else None)
        except ValueError:
            message = f"a controller's address is unix:PATH or http://HOST:PORT, not {url}"
            raise CommandError(message, ExitCode.USAGE) from None
        headers = {ACTOR_HEADER: _actor(), "user-agent": f"roundhouse/{__version__}"}
        if address.socket_path is None and (key := os.environ.get(KEY_VARIABLE)):
            headers["authorization"] = f"Bearer {key}"
        self._url = url
        self._timeout_s = timeout_s
        self._client = ProgramClient(address, timeout_s, headers=headers, follows_redirects=True)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    # Internal routes, which a gateway does not forward.

    async def get_status(self) -> ControllerStatus:
        """Return the controller's status: models, GPUs, problems. Not through a gateway. Errors: see AdminClient."""
        return await self._ask("GET", "/internal/status", ControllerStatus)

    async def set_paused(self, paused: bool) -> ControllerStatus:
        """Pause or resume the controller, and return its status. Not through a gateway. Errors: see AdminClient."""
        return await self._ask("POST", "/internal/pause", ControllerStatus, {"paused": paused})

    async def shut_down(self, *, stop_engines: bool, engines_grace_s: float | None = None) -> None:
        """Ask the controller to end, and return once it has agreed, which is before its end. With `stop_engines` it
        stops all engines first; otherwise they keep running. `engines_grace_s`: seconds from SIGTERM to SIGKILL of each
        engine; None: those of the controller's settings. Not through a gateway. Errors: see AdminClient."""
        await self._exchange(
            "POST", "/internal/shutdown", {"stop_engines": stop_engines, "engines_grace_s": engines_grace_s}
        )

    # The admin API.

    async def list_models(self) -> AdminModels:
        """Return the rows of all declared models and of the MCP servers that run (`mcp:NAME`). Errors: see
        AdminClient."""
        return await self._ask("GET", MODELS, AdminModels)

    async def get_model(self, name: str) -> AdminModel:
        """Return the row of a model, by its name or an alias. Raises RequestRefusedError with `unknown_model`: there is
        none."""
        return await self._ask("GET", model_path(name), AdminModel)

    async def declares_model(self, name: str) -> bool:
        """Return whether a model or an alias of this name is declared. True also where the controller refuses with
        another error than `unknown_model`, as before its first observation."""
        try:
            await self.get_model(name)
        except RequestRefusedError as error:
            return error.error_code != "unknown_model"
        return True

    async def load_model(
        self, name: str, values: Mapping[str, JsonValue], wait_s: float | None, *, restart: bool = False
    ) -> Transition:
        """Load a model, by its name or an alias, with these values (`replicas` and load fields by name), and return how
        far that is.

        `wait_s`: seconds that the controller waits for the end before it answers; None or 0: it answers at once, and
        the verdict is PENDING unless the model is there. With `restart`, a model that serves is restarted with the
        values. A load that fails returns FAILED, with the reason in the row's `last_error`. Errors: see AdminClient.
        """
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
        """Unload a model, by its name or an alias, and return how far that is: DONE or PENDING.

        `wait_s`: seconds that the controller waits for the end before it answers; None or 0: it answers at once. With
        `hold`, requests do not load an autoload model again. Errors: see AdminClient.
        """
        goal = TransitionGoal(ModelState.UNLOADED)
        return await self._change_model(f"{model_path(name)}/unload", {"hold": hold}, wait_s, goal)

    async def reset_model(self, name: str) -> AdminModel:
        """Drop the operator's load or unload of a model, by its name or an alias, and return the model's row; a model
        without one is no error. Errors: see AdminClient."""
        return await self._ask("DELETE", f"{model_path(name)}/override", AdminModel)

    async def list_hosts(self) -> HostList:
        """Return the hosts with what runs there; one without a name is the only one. Errors: see AdminClient."""
        return await self._ask("GET", HOSTS, HostList)

    async def drain_host(self, name: str, *, is_drained: bool) -> HostDetails:
        """Drain a host, or take that back, and return the host. Raises RequestRefusedError with `unknown_host` or
        `last_host`."""
        return await self._ask("POST", f"{HOSTS}/{quote(name, safe='')}/{'' if is_drained else 'un'}drain", HostDetails)

    async def remove_host(self, name: str) -> HostDetails:
        """Forget a host that is gone for good, and return what was last known of it. Raises RequestRefusedError with
        `unknown_host` or `host_answers`."""
        return await self._ask("POST", f"{HOSTS}/{quote(name, safe='')}/forget", HostDetails, {"confirm": name})

    async def list_declarations(self) -> DeclarationsView:
        """Return the runtime declarations, secrets masked, and why some are not in force. Errors: see AdminClient."""
        return await self._ask("GET", DECLARATIONS, DeclarationsView)

    async def put_declaration(
        self, kind: DeclarationKind, name: str, fields: Mapping[str, JsonValue]
    ) -> DeclarationView:
        """Declare a model or a key at run time, in place of an earlier runtime declaration of that name, and return the
        declaration with secrets masked. `fields`: as a desired-state file has them below the name. Raises
        RequestRefusedError with `invalid_declaration`; `declared_in_files`: the files declare the name."""
        return await self._ask("PUT", declaration_path(kind, name), DeclarationView, dict(fields))

    async def drop_declaration(self, kind: DeclarationKind, name: str, *, even_last: bool = False) -> DeclarationView:
        """Take the runtime declaration of a model or a key back, and return what it was, with secrets masked. Raises
        RequestRefusedError with `unknown_declaration`: there is none; with `last_key`: it is the last key, which only
        `even_last` takes back."""
        query = {"last": "true"} if even_last else None
        return await self._ask("DELETE", declaration_path(kind, name), DeclarationView, query=query)

    async def search_models(self, order: SearchOrder) -> ModelSearch:
        """Return models of the hub with the order's words in their names, and where they fit. Raises
        RequestRefusedError with `downloads_disabled`, `transfers_unreachable`, or a code that begins with
        `source_`."""
        query = {"words": order.words, "limit": str(order.limit)}
        return await self._ask("GET", f"{DOWNLOADS}/search", ModelSearch, query=query, timeout_s=SOURCE_S)

    async def inspect_download(self, order: ModelDownloadOrder) -> InspectedModel:
        """Return what a reference is, what memory it takes and where it fits; nothing is downloaded. Raises
        RequestRefusedError with `reference_invalid`, `downloads_disabled`, `transfers_unreachable`,
        `models_folder_failed`, or a code that begins with `source_`."""
        return await self._ask("POST", f"{DOWNLOADS}/inspect", InspectedModel, order.model_dump(), timeout_s=SOURCE_S)

    async def order_download(self, order: ModelDownloadOrder) -> OrderedDownload:
        """Begin a download, and return it; one that is under way is returned as it is. Raises RequestRefusedError with
        the codes of `inspect_download`, or another one that begins with `models_`."""
        return await self._ask("POST", DOWNLOADS, OrderedDownload, order.model_dump(), timeout_s=SOURCE_S)

    async def list_downloads(self) -> DownloadList:
        """Return all downloads, newest first. Raises RequestRefusedError with `downloads_disabled`,
        `transfers_unreachable`."""
        return await self._ask("GET", DOWNLOADS, DownloadList)

    async def cancel_download(self, download: str) -> Download:
        """End a download, by its id, and return it; one that has ended stays as it is. Raises RequestRefusedError with
        `download_not_found`, `downloads_disabled`, `transfers_unreachable`."""
        return await self._ask("DELETE", f"{DOWNLOADS}/{quote(download, safe='')}", Download, timeout_s=SOURCE_S)

    async def follow_downloads(self) -> AsyncGenerator[Download, None]:
        """Yield every download, and then each that changes, until the server ends the stream. Close the generator
        (`aclosing`).

        Raises LostControllerError where the connection breaks or nothing comes for 60 s (`SILENCE_S`).
        """
        reader = SseReader()
        chunks = self._chunks(f"{DOWNLOADS}/events", {}, headers={}, silence_s=SILENCE_S)
        async with aclosing(chunks):
            async for chunk in chunks:
                for event in reader.feed_bytes(chunk):
                    if event.kind == "download":
                        yield self._parse_answer(Download, event.data.encode())

    async def list_model_files(self) -> ModelFileList:
        """Return what lies in the models folders, which may take minutes (`FILES_S`). Errors: see AdminClient."""
        return await self._ask("GET", MODEL_FILES, ModelFileList, timeout_s=FILES_S)

    async def declare_model_file(self, order: FileDeclarationOrder) -> FileDeclaration:
        """Declare a file of the models folders with what it says of itself, or with `dry_run` only say what that would
        be. Raises RequestRefusedError with `invalid_declaration`, also where there is no such file, and
        `declared_in_files`."""
        content = order.model_dump(mode="json", exclude_none=True)
        return await self._ask("POST", MODEL_FILES, FileDeclaration, content, timeout_s=FILES_S)

    async def remove_model_files(self, model: str) -> Removal:
        """Remove a downloaded model, by its path below the models folder or its reference. Raises RequestRefusedError
        with `models_file_in_use`, `models_file_kept`."""
        return await self._ask("DELETE", MODEL_FILES, Removal, query={"model": model}, timeout_s=FILES_S)

    async def get_plan(self) -> PlanView:
        """Return what the controller would do now, by its last observation, without what it has begun already; while it
        is paused, all that it would do. Errors: see AdminClient."""
        return await self._ask("GET", "/v1/admin/plan", PlanView)

    async def run_dry_run(
        self, files: Mapping[str, str], models: Mapping[str, Mapping[str, JsonValue]] = MappingProxyType({})
    ) -> DryRun:
        """Return what would change if these files (name to content) were in the desired-state folder, each in place of
        the file of its name, and these models (name to fields) were declared at run time. Nothing is changed, and
        problems of both are in the result. Errors: see AdminClient."""
        proposed: dict[str, JsonValue] = {"files": dict(files)}
        if models:
            proposed["models"] = {name: dict(fields) for name, fields in models.items()}
        return await self._ask("POST", "/v1/admin/plan", DryRun, proposed)

    async def find_drift(self) -> Drift:
        """Return what runs differently from what is declared, empty where nothing does. Errors: see AdminClient."""
        return await self._ask("GET", "/v1/admin/drift", Drift)

    async def read_history(
        self, *, model: str | None, kinds: Sequence[str], limit: int, before: int | None = None
    ) -> History:
        """Return one page of up to `limit` entries of the history, newest first. Errors: see AdminClient.

        `model` None: of all models. Empty `kinds` means the kinds that change something. `before`: only entries with a
        smaller id, as the `next_before` of the page before says.
        """
        query = _query(model=model, kind=kinds, limit=limit, before=before)
        return await self._ask("GET", "/v1/admin/history", History, query=query)

    async def get_gpu_memory(self) -> GpuMemoryAnswer:
        """Return the memory of each GPU, and the estimated memory of each model, in MiB. Errors: see AdminClient."""
        return await self._ask("GET", "/v1/admin/gpu-memory", GpuMemoryAnswer)

    async def follow_events(
        self, *, after: int | str, model: str | None = None, kinds: Sequence[str] = ()
    ) -> AsyncGenerator[SseEvent, None]:
        """Yield events after the entry `after` as they happen, heartbeats left out. One without data has no entry: its
        id is that of entries that were not asked for.

        `after`: id of an entry; 0: every entry that is kept. Empty `kinds`: all; `model` None: all. An event of kind
        `gap` says that entries after `after` are no longer kept. It ends when the server ends the stream, and raises
        LostControllerError when the connection breaks or nothing comes for 60 s (`SILENCE_S`). It does not connect
        again; `cli.following.EventFollower` does. Close the generator (`aclosing`).
        """
        reader = SseReader()
        query, headers = _query(model=model, kind=kinds), {"Last-Event-ID": str(after)}
        chunks = self._chunks("/v1/admin/events", query, headers=headers, silence_s=SILENCE_S)
        async with aclosing(chunks):
            async for chunk in chunks:
                known_id, events = reader.last_id, reader.feed_bytes(chunk)
                for event in events:
                    yield event
                if reader.last_id != (events[-1].id if events else known_id):
                    yield SseEvent("message", "", reader.last_id)

    async def read_logs(self, name: str, *, replica: str | None, lines: int, follow: bool) -> AsyncGenerator[str, None]:
        """Yield pieces of the engines' logs as they arrive; a piece may end within a line, and the last one may be
        empty. Logs of several engines are mixed: each line then begins with its replica's name.

        `replica`: name of one replica, running or ended; None: all running replicas of the model, or the one that ended
        last where none runs. `lines`: maximum number of existing lines of each replica, from the end of its log, 0 to
        10,000. With `follow`, the generator goes on with new lines, without a limit of time, until the server ends the
        answer or the caller closes the generator (`aclosing`). Without `follow`, it ends after the existing lines.

        Raises LostControllerError when the connection breaks or, without `follow`, nothing comes for the client's
        `timeout_s`, and RequestRefusedError with `unknown_model` or `unknown_replica`.
        """
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

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: object = None,
        query: Query | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        _, content = await self._exchange(method, path, body, query, timeout_s=timeout_s)
        return self._parse_answer(kind, content)

    def _parse_answer(self, kind: type[Answer], content: bytes) -> Answer:
        try:
            return kind.model_validate_json(content)
        except ValidationError:
            raise CommandError(f"what answers at {self._url} is no controller of this version") from None

    async def _exchange(
        self, method: str, path: str, body: object = None, query: Query | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of an answer. `path` is percent-encoded. Raises RequestRefusedError for an error."""
        within_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=within_s, connect=self._timeout_s)
        with translate_failures(self._url, within_s):
            async with await self._send(method, path, query, timeout, body=body) as answer:
                content = await answer.read_body()
        if answer.status >= 400:
            raise RequestRefusedError(answer.status, read_error(content))
        return answer.status, content

    async def _chunks(
        self, path: str, query: Query, *, headers: Mapping[str, str], silence_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer as it comes. Raises LostControllerError after `silence_s` seconds of silence;
        None: without a limit."""
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=silence_s)
        with translate_failures(self._url, STREAM_START_S if silence_s is None else silence_s):
            async with asyncio.timeout(STREAM_START_S):
                answer = await self._send("GET", path, query, timeout, headers=headers)
            async with answer:
                if answer.status >= 400:
                    raise RequestRefusedError(answer.status, read_error(await answer.read_body()))
                while chunk := await answer.read_part():
                    yield chunk

    async def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        timeout: aiohttp.ClientTimeout,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> ProgramAnswer:
        target = str(URL(path, encoded=True).with_query(query)) if query else path
        content, all_headers = b"", {"accept": "*/*", **(headers or {})}
        if body is not None:
            content, all_headers["content-type"] = json.dumps(body).encode(), "application/json"
        try:
            return await self._client.send_request(method, target, all_headers, content, timeout=timeout)
        except ValueError as error:
            raise CommandError(f"{self._url} is no address: {error}", ExitCode.USAGE) from None


def declaration_path(kind: DeclarationKind, name: str) -> str:
    """Return the path of one runtime declaration in the admin API, percent-encoded. `/` in a model's name stays."""
    return f"{DECLARATIONS}/{kind}/{quote(name)}"


def model_path(name: str) -> str:
    """Return the path of a model's routes in the admin API, percent-encoded. A model's name may contain `/`, which
    stays."""
    return f"{MODELS}/{quote(name, safe='/:@')}"


def _query(**values: str | int | Sequence[str] | None) -> Query:
    """Return the query parameters without None and empty values."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def _actor() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many containers
        return "command line"
    return f"command line of {user}" if user.isascii() and user.isprintable() else "command line"


def ask_admin(url: str, question: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """Open a client for the controller at `url`, await `question` with it, and return the result. Blocks. Raises what
    `question` raises, CommandError for a wrong address, and RuntimeError where an event loop already runs in this
    thread."""

    async def _asked() -> Result:
        async with AdminClient(url) as client:
            return await question(client)

    return asyncio.run(_asked())
