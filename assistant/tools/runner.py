"""Lists and calls tools for callers: the one place that applies keys, schemas, time limits and caps. The latest calls,
with redacted arguments, are kept for the controller's history.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from assistant.tools.arguments import ArgumentCheck, check_texts
from assistant.tools.builtin.builtin_tools import ToolResources, build_tool
from assistant.tools.mcp_client.catalog import ServerContents
from assistant.tools.mcp_client.servers import McpServers
from assistant.tools.spec import Tool, ToolCall, ToolResult, ToolSpec, cut_text
from contract.errors import RoundhouseError
from contract.routing import MOST_TOOL_CALLS
from contract.tools import GET_PROMPT, READ_RESOURCE, SEPARATOR, ToolCallRecord, ToolRoute
from gateway.protocols.common.conversation import Fields
from gateway.routing.table import Routes
from gateway.tenancy.api_keys import Caller

if TYPE_CHECKING:
    from assistant.tools.mcp_client.server_connection import ServerConnection

logger = logging.getLogger(__name__)

LONGEST_ARGUMENTS: Final = 4096
"""Characters of the arguments of a call that a report has. The history has 200 of them: the controller cuts them when
it has masked the secrets that it knows, which it would not find in halves."""
_MOST_PARTS: Final = 200
"""Fields of an object, elements of a list, and characters of a field's name that are looked at."""
LONGEST_NAME: Final = 200
"""Characters of a tool's name that the history has: it may be a client's text."""
MASK: Final = "***"
_SECRET_NAMES: Final = re.compile(
    r"pass(word|phrase|wd)?$|secret|token|api.?key|authori[sz]ation|credential|cookie|private.?key", re.IGNORECASE
)
_SECRET_TEXTS: Final = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(?:sk|pk|rk|rh|ghp|gho|ghs|github_pat|glpat|hf|xox[abprs])[-_][A-Za-z0-9_-]{12,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r"|(?<=://)[^/\s:@]{1,100}:[^/\s@]{1,100}(?=@)"
    r"|(?i:\b(?:password|secret|token|api_?key|access_?key)\s*[=:]\s*)[^\s&,;\"']{4,}"
)
"""Texts that look like credentials: of HTTP, of well-known services, in addresses, and where a name says so."""
_MOST_MASKED: Final = 2 * LONGEST_ARGUMENTS
"""Values of a call, and characters of its texts and names, that are looked at: what comes later is not shown. More than
are shown, so that a secret at the end of what is shown is masked whole."""


def redact_arguments(arguments: Fields) -> str:
    """Return arguments as JSON for people: values that may be secrets masked, and at most `LONGEST_ARGUMENTS`
    characters, the last three of which are `...` where it is cut."""
    masked = _Masker().mask_value(arguments, 0)
    text = json.dumps(masked, ensure_ascii=False, separators=(", ", ": "))
    printable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:_MOST_MASKED])
    return printable if len(printable) <= LONGEST_ARGUMENTS else printable[: LONGEST_ARGUMENTS - 3] + "..."


class _Masker:
    """Masks the values of one call's arguments, of which it looks at `_MOST_MASKED` values and characters together: it
    takes the event loop's time."""

    def __init__(self) -> None:
        self._left = _MOST_MASKED
        """Values and characters that are looked at yet."""

    def mask_value(self, value: object, depth: int) -> object:
        """Return the value masked, and cut where it has too many parts. `depth`: of objects and lists around it."""
        self._left -= 1
        if isinstance(value, str):
            looked_at = value[: max(0, self._left)]
            self._left -= len(looked_at)
            return _SECRET_TEXTS.sub(MASK, looked_at)
        if depth > 4 and isinstance(value, dict | list):
            return MASK
        if isinstance(value, dict):
            shown = islice(value.items(), _MOST_PARTS)
            return {name[:_MOST_PARTS]: self._mask_field(name, each, depth) for name, each in shown if self._left > 0}
        if isinstance(value, list):
            return [self.mask_value(each, depth + 1) for each in value[:_MOST_PARTS] if self._left > 0]
        return value

    def _mask_field(self, name: str, value: object, depth: int) -> object:
        # What a name is that is not looked at to its end, nobody knows.
        is_secret = len(name) > _MOST_PARTS or _SECRET_NAMES.search(name) is not None
        self._left -= min(len(name), _MOST_PARTS)
        return MASK if is_secret else self.mask_value(value, depth + 1)


class ToolCallLog:
    """The latest `MOST_TOOL_CALLS` calls, numbered from the gateway's start. Used in the event loop."""

    def __init__(self) -> None:
        self._latest: deque[ToolCallRecord] = deque(maxlen=MOST_TOOL_CALLS)
        self._count = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called after each call that is added."""

    def add(self, record: ToolCallRecord) -> None:
        """Add a copy of an ended call with the next `sequence`, drop the oldest call where there are too many, and call
        `on_change`."""
        self._count += 1
        self._latest.append(record.model_copy(update={"sequence": self._count}))
        self.on_change()

    def list_latest(self) -> tuple[ToolCallRecord, ...]:
        """Return the latest calls, at most `MOST_TOOL_CALLS`, oldest first."""
        return tuple(self._latest)


UNKNOWN: Final = "unknown"
"""What counters name a tool that there is not."""
_REFUSALS: Final = frozenset(
    {
        "mcp_server_not_found",
        "prompt_not_found",
        "resource_not_found",
        "tool_arguments_invalid",
        "tool_not_allowed",
        "tool_not_found",
        "tools_disabled",
    }
)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _BoundTool:
    """A tool with its limits and the check of its arguments."""

    tool: Tool
    check: ArgumentCheck | None
    """None: it has not been made yet, for the tool was never called."""
    timeout_s: float
    max_output_bytes: int


class ToolRunner:
    """Lists the tools that a caller may call, and calls them. One per gateway, made by `Assistant`.

    Used in the event loop. Run `servers.run` as a task for the life of the gateway, and give each new routing table to
    `follow_table`.
    """

    def __init__(
        self,
        resources: ToolResources,
        servers: McpServers,
        count_call: Callable[[str, str], None],
    ) -> None:
        """`count_call` counts an ended call by the tool's name, or `UNKNOWN`, and its outcome: `ok`, `error`,
        `refused`, `timeout`, `failed` or `cancelled`. `resources`: what built-in tools work with; its clock dates the
        calls."""
        self._resources = resources
        self._servers = servers
        self._count_call = count_call
        self._routes: tuple[ToolRoute, ...] = ()
        self._builtin: dict[str, _BoundTool] = {}
        self.log = ToolCallLog()
        """The latest calls, for reports."""

    def follow_table(self, routes: Routes) -> None:
        """Offer what a routing table enables, from now on, and have its servers connected. Calls that run go on.
        Returns at once. Call in the event loop."""
        if routes.tools != self._routes:
            built = {route.name: (route, build_tool(route, self._resources)) for route in routes.tools}
            self._builtin = {name: _bind(route, tool) for name, (route, tool) in built.items() if tool is not None}
            self._routes = routes.tools
        self._servers.follow_table(routes.mcp_servers)

    @property
    def is_enabled(self) -> bool:
        """Whether any tool or MCP server is declared."""
        return bool(self._builtin) or self._servers.has_any

    def list_tools(self, caller: Caller) -> list[ToolSpec]:
        """Return what the caller may call now, sorted by name. Tools of MCP servers that are down are left out; those
        of one that is being connected again, or started, are as they were last."""
        specs = [each.tool.spec for each in self._builtin.values()] + self._servers.list_tools()
        return sorted((spec for spec in specs if spec.is_open_to(caller)), key=lambda spec: spec.name)

    def list_down(self, caller: Caller) -> list[str]:
        """Return the names of the declared MCP servers that are not connected now, and of which the caller's key may
        call something: a tool that the server offered last, or whatever it may offer."""
        return [
            status.name
            for status in self._servers.list_status()
            if status.state != "connected"
            and (
                caller.may_call_tool(f"{status.name}{SEPARATOR}")
                or any(each.tool.spec.is_open_to(caller) for each in status.catalog.tools.values())
            )
        ]

    async def call_tool(
        self, caller: Caller, name: str, arguments: Fields, *, request_id: str, document_tenant: str | None = None
    ) -> ToolResult:
        """Call a tool, return its result, cut at the tool's cap, and note the call in `log` and by `count_call`,
        whatever comes of it. Cancelling the task cancels the call.

        A call waits some seconds for an MCP server that is not connected, and then takes at most the tool's
        `timeout_s`. One that is cancelled, or that fails, may have been carried out. `document_tenant`: whose documents
        may be searched; None: those of the caller's tenant. `request_id`: of the request that the call belongs to.

        Raises:
            RoundhouseError: `tools_disabled`, `tool_not_found`, `tool_not_allowed`, `tool_arguments_invalid`,
                `tool_timeout`, `tool_failed`; or what a part of Roundhouse that the tool asks answers.
        """
        with self._noting(caller, name, arguments, request_id) as ending:
            bound = await self._find_tool(caller, name)
            check = await self._check_of(bound) if bound.check is None else bound.check
            check.check(arguments)
            call = ToolCall(
                caller=caller,
                document_tenant=caller.tenant if document_tenant is None else document_tenant,
                arguments=arguments,
                request_id=request_id,
                timeout_s=bound.timeout_s,
                max_output_bytes=bound.max_output_bytes,
            )
            result = await _run_within(bound.timeout_s, name, bound.tool.run(call))
            ending.outcome = "error" if result.is_error else "ok"
            ending.output_bytes = len(result.text.encode("utf-8", errors="replace"))
            return ToolResult(cut_text(result.text, bound.max_output_bytes), result.is_error)

    async def get_prompt(
        self, caller: Caller, server: str, name: str, arguments: Fields, *, request_id: str
    ) -> list[Fields]:
        """Return the messages of a prompt of an MCP server, in MCP's form (`messages_of`). For everything else this is
        a call of the tool `SERVER__prompts/get`: whether the key may, waiting, time, `log`, and the counter.

        Raises:
            RoundhouseError: as `call_tool`; `mcp_server_not_found`; `prompt_not_found`: the server lists none of the
                name; `tool_arguments_invalid`: the prompt does not take the arguments.
        """
        called = f"{server}{SEPARATOR}{GET_PROMPT}"
        with self._noting(caller, called, {"name": name, "arguments": arguments}, request_id) as ending:
            connection = await self._find_server(caller, server, called)
            prompt = connection.status.catalog.find_prompt(name)
            if prompt is None:
                raise RoundhouseError("prompt_not_found", f"The server {server} has no prompt {name!r:.100}.")
            check_texts(arguments)
            asked = connection.get_prompt(name, prompt.check_arguments(arguments), request_id)
            return ending.take(await _run_within(connection.route.timeout_s, called, asked))

    async def read_resource(self, caller: Caller, server: str, uri: str, *, request_id: str) -> list[Fields]:
        """Return the contents of a resource of an MCP server, in MCP's form (`contents_of`). For everything else this
        is a call of the tool `SERVER__resources/read`, as in `get_prompt`. The resource need not be listed: its address
        may be made of a template.

        Raises:
            RoundhouseError: as `call_tool`; `mcp_server_not_found`; `resource_not_found`, also where none is offered.
        """
        called = f"{server}{SEPARATOR}{READ_RESOURCE}"
        with self._noting(caller, called, {"uri": uri}, request_id) as ending:
            connection = await self._find_server(caller, server, called)
            if not connection.offers(READ_RESOURCE):
                raise RoundhouseError("resource_not_found", f"No resources of {server} are offered.", param="uri")
            asked = connection.read_resource(uri, request_id)
            return ending.take(await _run_within(connection.route.timeout_s, called, asked))

    async def _find_server(self, caller: Caller, server: str, called: str) -> ServerConnection:
        """Return the connection to a server for what the key must be allowed to call. Use it without an `await`."""
        self._check_key(caller, called)
        connection = await self._servers.find_connection(server)
        if connection is None:
            raise RoundhouseError("mcp_server_not_found", f"No MCP server {server!r:.100} is declared.")
        return connection

    def _check_key(self, caller: Caller, name: str) -> None:
        if not self.is_enabled:
            raise RoundhouseError("tools_disabled", "No tools are enabled here.")
        if not caller.may_call_tool(name) and not any(
            spec.name == name and spec.is_open_to(caller) for spec in self._servers.list_tools()
        ):
            message = f"The key {caller.name} may not call {name!r:.100}."
            raise RoundhouseError("tool_not_allowed", message, param="tool")

    async def _find_tool(self, caller: Caller, name: str) -> _BoundTool:
        self._check_key(caller, name)
        bound = self._builtin.get(name)
        if bound is not None:
            return bound
        server, separator, _ = name.partition(SEPARATOR)
        offer = await self._servers.find_tool(server, name) if separator else None
        if offer is None:
            raise RoundhouseError("tool_not_found", f"There is no tool {name!r:.100}.", param="tool")
        return _BoundTool(offer.tool, offer.check, offer.route.timeout_s, offer.route.max_output_kib * 1024)

    async def _check_of(self, bound: _BoundTool) -> ArgumentCheck:
        """Make the check of a built-in tool, in a thread: the library is imported for the first one."""
        check = await asyncio.to_thread(ArgumentCheck, bound.tool.spec.parameters)
        name = bound.tool.spec.name
        if self._builtin.get(name) is bound:
            self._builtin[name] = replace(bound, check=check)
        return check

    @contextmanager
    def _noting(self, caller: Caller, name: str, arguments: Fields, request_id: str) -> Iterator[_Ending]:
        """Note the call that runs within the context in `log` and by the counter, whatever comes of it."""
        began_at, at = time.monotonic(), self._resources.clock()
        ending = _Ending()
        try:
            yield ending
        except RoundhouseError as error:
            ending.outcome = error.entry.code
            raise
        except asyncio.CancelledError:
            ending.outcome = "cancelled"
            raise
        finally:
            duration_ms = round(1000 * (time.monotonic() - began_at))
            self._note(caller, name, arguments, request_id, at, duration_ms, ending)

    def _note(
        self,
        caller: Caller,
        name: str,
        arguments: Fields,
        request_id: str,
        at: float,
        duration_ms: int,
        ending: _Ending,
    ) -> None:
        server, separator, own_name = name.partition(SEPARATOR)
        is_of_server = bool(separator) and self._servers.has_server(server)
        is_known = name in self._builtin or self._servers.has_tool(name)
        is_known = is_known or (is_of_server and own_name in (GET_PROMPT, READ_RESOURCE))
        self._count_call(name if is_known else UNKNOWN, _count_as(ending.outcome))
        record = ToolCallRecord(
            sequence=0,
            at=at,
            tool=name[:LONGEST_NAME],
            server=server if is_of_server else None,
            caller=caller.client_id.decode("ascii", errors="replace") if caller.name is None else caller.name,
            request_id=request_id,
            arguments=redact_arguments(arguments),
            outcome=ending.outcome,
            duration_ms=duration_ms,
            output_bytes=ending.output_bytes,
        )
        self.log.add(record)


@dataclass(slots=True)
class _Ending:
    """How a call ended."""

    outcome: str = "internal_error"
    output_bytes: int = 0
    """Of the result before it was cut."""

    def take(self, contents: ServerContents) -> list[Fields]:
        """Note what a server answered, and return it."""
        self.outcome, self.output_bytes = "ok", contents.size
        return contents.parts


def _bind(route: ToolRoute, tool: Tool) -> _BoundTool:
    return _BoundTool(tool, None, route.timeout_s, route.max_output_kib * 1024)


async def _run_within(timeout_s: float, name: str, run: Awaitable[_Result]) -> _Result:
    try:
        async with asyncio.timeout(timeout_s):
            return await run
    except TimeoutError:
        message = f"The tool {name} did not answer within {timeout_s:g} s, and was ended."
        raise RoundhouseError("tool_timeout", message) from None
    except RoundhouseError:
        raise
    except Exception:  # of one call, which must not end what else its caller has under way
        logger.exception("the tool %s failed", name)
        raise RoundhouseError("tool_failed", f"The tool {name} failed.") from None


def _count_as(outcome: str) -> str:
    if outcome in ("ok", "error", "cancelled"):
        return outcome
    if outcome in _REFUSALS:
        return "refused"
    return "timeout" if outcome == "tool_timeout" else "failed"
