"""The connection to one MCP server over streamable HTTP: kept, made again where it ends, and refreshed; and what the
server offers and answers, bounded.

Imports `mcp`, which takes long; import this module where a server is declared.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequest,
    GetPromptRequestParams,
    GetPromptResult,
    Implementation,
    InputRequiredResult,
    Prompt,
    PromptListChangedNotification,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    Request,
    Resource,
    ResourceListChangedNotification,
    ResourceTemplate,
    Tool,
    ToolListChangedNotification,
)
from pydantic import TypeAdapter, ValidationError

from assistant.tools.arguments import ArgumentCheck, SchemaProblem
from assistant.tools.mcp_client.bounded_transport import TRANSPORT_FAILED, BoundedTransport, RunningCalls
from assistant.tools.mcp_client.catalog import (
    LONGEST_URI,
    Catalog,
    OfferedPrompt,
    OfferedResource,
    OfferedTool,
    PromptArgument,
    ServerContents,
    ServerState,
    ServerStatus,
)
from assistant.tools.spec import ToolCall, ToolResult, ToolSpec, cut_texts
from common.host_tls import HostContexts
from contract.errors import RoundhouseError
from contract.tools import GET_PROMPT, READ_RESOURCE, SEPARATOR, McpServerRoute, write_tool_name
from gateway.control.inflight import InflightCounts
from gateway.protocols.common.conversation import Fields
from gateway.tenancy.api_keys import NamePatterns

logger = logging.getLogger(__name__)


MOST_TOOLS: Final = 500
MOST_PAGES: Final = 50
MOST_ENTRIES: Final = 500
"""Resources, templates of resources, and prompts, that are listed of each."""

LOST: Final = frozenset({CONNECTION_CLOSED, PARSE_ERROR, TRANSPORT_FAILED})
"""Codes of requests that the server did not answer, or not in a way that can be read."""


@dataclass(frozen=True, slots=True)
class Offers:
    """The tools, resources and prompts that an MCP server lists, within the bounds of this module."""

    tools: list[Tool]
    resources: tuple[OfferedResource, ...]
    """With the templates of resources, which come last."""
    prompts: tuple[OfferedPrompt, ...]
    left_out: list[str]
    """Why prompts and resources are left out, one sentence each."""


async def list_offers(client: Client) -> Offers:
    """Ask a connected server what it offers, within this module's bounds. Raises MCPError: no answer, or a refusal."""
    capabilities = client.server_capabilities
    tools: list[Tool] = []
    if capabilities.tools is not None:
        tools = await _list_pages(client.list_tools, "tools", MOST_TOOLS)
    resources: list[Any] = []
    if capabilities.resources is not None:
        resources = await _list_pages(client.list_resources, "resources", MOST_ENTRIES)
        resources += await _list_optional(client.list_resource_templates, "resource_templates")
    prompts: list[Any] = []
    if capabilities.prompts is not None:
        prompts = await _list_pages(client.list_prompts, "prompts", MOST_ENTRIES)
    left_out: list[str] = []
    offered = [describe_resource(each) for each in resources]
    return Offers(
        tools,
        tuple(each for each in offered if _is_usable("resource", each.uri, LONGEST_URI, left_out)),
        tuple(describe_prompt(each) for each in prompts if _is_usable("prompt", each.name, LONGEST_NAME, left_out)),
        left_out,
    )


def _is_usable(kind: str, name: str, longest: int, left_out: list[str]) -> bool:
    """Return whether something can be asked for by its name, which stands in addresses; else note why not."""
    is_usable = 0 < len(name) <= longest and name.isprintable()
    if not is_usable:
        left_out.append(f"A {kind} is left out: its name {name!r:.100} cannot be used.")
    return is_usable


async def _list_pages(list_page: Callable[..., Awaitable[Any]], entries: str, most: int) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await list_page(cursor=cursor)
        found += getattr(page, entries)
        cursor = page.next_cursor
        if cursor is None or len(found) >= most:
            break
    return found[:most]


async def _list_optional(list_page: Callable[..., Awaitable[Any]], entries: str) -> list[Any]:
    """As `_list_pages`, of what a server need not have."""
    try:
        return await _list_pages(list_page, entries, MOST_ENTRIES)
    except MCPError as error:
        if error.code in LOST:
            raise
        return []


LONGEST_DESCRIPTION: Final = 4096
LONGEST_NAME: Final = 128
"""Characters of the name of a tool, for which MCP allows no more, or of a prompt."""
MOST_ARGUMENTS: Final = 100
"""Arguments of a prompt that are listed."""


def text_of_result(result: CallToolResult) -> str:
    """Return the result for a model, not cut: its texts, and a line for each part that is none, such as an image with
    its size. Where there are no parts: the structured content as JSON, or an empty text."""
    pieces = [_text_of_part(part) for part in result.content]
    if not pieces and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(pieces)


def _text_of_part(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        size = len(part.data) * 3 // 4 - part.data[-2:].count("=")
        return f"[{part.type}, {part.mime_type:.100}, {size} bytes]"
    if part.type == "resource_link":
        told = [part.mime_type, None if part.size is None else f"{part.size} bytes", part.description]
        about = "".join(f", {each:.500}" for each in told if each)
        return f"[resource {part.name:.200}: {part.uri!s:.500}{about}]"
    resource = part.resource
    if hasattr(resource, "text"):
        return str(resource.text)
    return f"[resource {resource.uri!s:.500}, {resource.mime_type or 'of no type':.100}]"


def name_tools(names: Iterable[str]) -> dict[str, str]:
    """Return the name under which each tool of a server is offered, by the server's own name for it. Names that need no
    change have none, and no two are the same. Pure. `names`: in the server's order, with the server's name before
    each."""
    listed = list(names)
    counts = Counter(map(write_tool_name, listed))
    return {
        name: write_tool_name(name, is_distinct=counts[write_tool_name(name)] > 1 and write_tool_name(name) != name)
        for name in listed
    }


def describe_resource(resource: Resource | ResourceTemplate) -> OfferedResource:
    """Return a resource, or a template of resources, for lists; long names and descriptions are cut."""
    is_template = hasattr(resource, "uri_template")
    uri = resource.uri_template if hasattr(resource, "uri_template") else resource.uri
    return OfferedResource(
        uri=str(uri),
        name=resource.name[:LONGEST_NAME],
        description=(resource.description or "")[:LONGEST_DESCRIPTION],
        media_type=resource.mime_type,
        is_template=is_template,
    )


def describe_prompt(prompt: Prompt) -> OfferedPrompt:
    """Return a prompt as lists show it, with at most `MOST_ARGUMENTS` arguments; long descriptions are cut."""
    arguments = tuple(
        PromptArgument(each.name[:LONGEST_NAME], (each.description or "")[:LONGEST_DESCRIPTION], bool(each.required))
        for each in (prompt.arguments or [])[:MOST_ARGUMENTS]
    )
    return OfferedPrompt(prompt.name, (prompt.description or "")[:LONGEST_DESCRIPTION], arguments)


def messages_of(result: GetPromptResult, most_bytes: int) -> ServerContents:
    """Return the messages of a prompt: `role` and `content`, which is a text, an image, a sound, a resource or the link
    to one. The texts of all messages have `most_bytes` together, and are cut as a tool's output is; binary data is
    never cut: the answer of the server was bounded as a whole. What MCP adds beside (annotations, icons, `_meta`) is
    left out.
    """
    blocks = [_block_of(message.content) for message in result.messages]
    size = _cut([block.get("resource", block) for block in blocks], most_bytes)
    parts = [{"role": message.role, "content": block} for message, block in zip(result.messages, blocks, strict=True)]
    return ServerContents(parts, size)


def contents_of(result: ReadResourceResult, most_bytes: int) -> ServerContents:
    """Return the contents of a resource: `uri`, `mimeType` if the server tells one, and `text` or `blob` (base64).
    Bounded as `messages_of`."""
    parts = [_resource_of(each) for each in result.contents]
    return ServerContents(parts, _cut(parts, most_bytes))


def _block_of(block: Any) -> Fields:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type in ("image", "audio"):
        return {"type": block.type, "data": block.data, "mimeType": block.mime_type}
    if block.type == "resource_link":
        told = {"title": block.title, "description": block.description, "size": block.size}
        known = {name: value for name, value in told.items() if value is not None}
        return {"type": "resource_link", "uri": str(block.uri), "name": block.name, **_media_type_of(block), **known}
    return {"type": "resource", "resource": _resource_of(block.resource)}


def _resource_of(resource: Any) -> Fields:
    contents = {"text": resource.text} if hasattr(resource, "text") else {"blob": resource.blob}
    return {"uri": str(resource.uri), **_media_type_of(resource), **contents}


def _media_type_of(resource: Any) -> Fields:
    return {} if resource.mime_type is None else {"mimeType": resource.mime_type}


def _cut(parts: list[Fields], most_bytes: int) -> int:
    """Cut the texts of the parts in place. Returns the size of all parts, as `ServerContents.size`."""
    with_text = [part for part in parts if "text" in part]
    texts: list[str] = [part["text"] for part in with_text]
    binaries: list[str] = [part["blob"] if "blob" in part else part.get("data", "") for part in parts]
    for part, kept in zip(with_text, cut_texts(texts, most_bytes), strict=True):
        part["text"] = kept
    return sum(len(text.encode("utf-8", errors="replace")) for text in texts) + sum(map(len, binaries))


CONNECT_S: Final = 10.0
"""Seconds that a server may take to be connected, or to list what it offers."""
FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 30.0
REFRESH_S: Final = 60.0
"""Seconds after which a server is asked again what it offers, whether or not it told of a change. So its end is
noticed, too."""
FEWEST_REFRESH_S: Final = 1.0
"""Seconds between two such questions, however often a server tells of changes."""
CALLS_AT_ONCE: Final = 32
"""Calls that one server gets at the same time; further ones wait, within their own time."""
IDLE_S: Final = 2.0
"""Seconds that a connection without a request is kept. Usual servers (uvicorn, Node.js) close one after 5 s: a call
that comes at that moment fails, and nobody knows whether it was carried out."""
RECEIVE_BUFFER_BYTES: Final = 128 * 1024
"""What the system takes of an answer that is not read yet, before it has the server wait; Linux doubles it. The event
loop reads all of it in one go, and its own buffer grows to megabytes for a server that floods: milliseconds in which no
stream goes on, for an answer that is not read further."""
MOST_LEFT_OUT: Final = 20
"""Reasons that are told why something of a server is not offered."""
_CHANGES: Final = (ToolListChangedNotification, ResourceListChangedNotification, PromptListChangedNotification)
_SESSION_ENDED: Final = "Session terminated"
"""Message of the library where a server does not know the session any more, because it was started anew."""
_REFUSED: Final = "Server returned an error response"
"""Message of the library for an HTTP status of an error without a message of JSON-RPC."""
_RESULT: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(CallToolResult | InputRequiredResult)
_PROMPT: Final[TypeAdapter[GetPromptResult | InputRequiredResult]] = TypeAdapter(GetPromptResult | InputRequiredResult)
_RESOURCE: Final[TypeAdapter[ReadResourceResult | InputRequiredResult]] = TypeAdapter(
    ReadResourceResult | InputRequiredResult
)
_PREFIXES: Final = ("Failed to parse JSON response: ", "Failed to parse SSE message: ", "SSE stream failed: ")
_NO_RESOURCE: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, -32002})
"""Codes by which servers say that they have no such resource. The last is that of the protocol's versions of 2025."""


_Request = Request[Any, Any]
_Answer = TypeVar("_Answer", CallToolResult, GetPromptResult, ReadResourceResult)


class ServerConnection:
    """One declared server, as one routing table declares it. Run `run` as a task; `retire` ends it in order, and
    cancelling it ends its calls, too."""

    def __init__(
        self, route: McpServerRoute, clock: Callable[[], float], ledger: InflightCounts, known: Catalog | None = None
    ) -> None:
        """`clock`: Unix time in seconds. `ledger` counts the calls of a server that the controller runs. `known`: what
        the server offered over an earlier connection, which is listed until it is connected; None: nothing."""
        self.route = route
        self._clock = clock
        self._client: Client | None = None
        self._left_out: list[str] = []
        """Of the newest connection's transport, see `BoundedTransport.left_out`."""
        self._wake = asyncio.Event()
        """Set where a refresh, or another try to connect, is wanted before its time."""
        self._changed = asyncio.Event()
        """Set, and replaced, at each change of the state."""
        self._places = asyncio.Semaphore(CALLS_AT_ONCE)
        self._calls = RunningCalls(route.replica, ledger)
        self._patterns = None if route.tools is None else NamePatterns(route.tools)
        self.status = self._first_status(known or Catalog())
        """The server as it is now."""

    def _first_status(self, known: Catalog) -> ServerStatus:
        route = self.route
        prefix = f"{route.name}{SEPARATOR}"
        tools = {name: each for name, each in known.tools.items() if self.offers(name.removeprefix(prefix))}
        state: ServerState = "connecting" if route.url is not None or route.is_expected else "down"
        reason = None if route.url is not None else route.reason or "the controller does not run it"
        resources = known.resources if self.offers(READ_RESOURCE) else ()
        prompts = known.prompts if self.offers(GET_PROMPT) else ()
        catalog = replace(known, tools=tools, resources=resources, prompts=prompts)
        return ServerStatus(route.name, state, self._clock(), reason, catalog)

    async def run(self) -> None:
        """Connect, keep the connection, and connect again where it ends, until `retire` was called and the last call
        has ended. Failures are only noted, in `status`. Call once. Cancelling ends the connection, and running calls
        fail with `tool_failed`."""
        connecting = asyncio.create_task(self._keep_connected())
        try:
            await self._calls.wait_ended()
        finally:
            self._calls.close()  # nothing is tried again, also if the library makes an error of the cancellation
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)

    def retire(self) -> None:
        """Take no new calls, because another connection takes them from now on, or the server is not declared any
        more. Calls that run go on; `run` returns once they have ended. Returns at once."""
        self._calls.close()
        self._tell_change()

    async def wait_connected(self) -> bool:
        """Wait until the server is connected, and return True; False: it was retired, a try to connect failed, or
        nobody brings the server up. One that is not connected is tried at once; one that the controller runs is tried
        until it is connected or retired, for the controller starts it again. So bound the time of waiting."""
        while not self._calls.is_closed:
            if self.status.state == "connected":
                return True
            changed = self._changed
            if self.route.url is not None:
                self._wake.set()
            elif not self.route.is_expected:
                return False
            await changed.wait()
            if self.status.state == "down" and self.route.replica is None:
                return False
        return False

    async def call_tool(self, name: str, call: ToolCall) -> ToolResult:
        """Call a tool by the server's own name for it, and return its result, not cut; `is_error`: the tool failed, or
        the server refuses the call. At most `CALLS_AT_ONCE` calls run; others wait. There is no time limit but the
        caller's: cancelling tells the server, which may have carried the call out. A server that was started anew, and
        did not take the call, is connected again, and gets it once more.

        From the beginning, the call is in flight at the server's replica, if it is one. So call this without an `await`
        after `wait_connected`: the replica is then one of the routing table in force.

        Raises:
            RoundhouseError: `tool_failed`: the server does not answer, breaks off, answers an HTTP status of an error,
                too much, or what cannot be read. It may have carried the call out.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=call.arguments))
        try:
            result = await self._ask(request, _RESULT, call.request_id)
        except MCPError as error:
            return ToolResult(error.message, is_error=True)
        return ToolResult(text_of_result(result), result.is_error)

    async def get_prompt(self, name: str, arguments: dict[str, str], request_id: str) -> ServerContents:
        """Return the messages of a prompt, as `call_tool` calls a tool.

        Raises:
            RoundhouseError: as `call_tool`; `tool_arguments_invalid`: the server does not take the arguments.
        """
        request = GetPromptRequest(params=GetPromptRequestParams(name=name, arguments=arguments))
        try:
            result = await self._ask(request, _PROMPT, request_id)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise RoundhouseError("tool_arguments_invalid", f"{error.message:.300}", param="arguments") from None
            raise self._failure(error.message) from None
        return messages_of(result, self.route.max_output_kib * 1024)

    async def read_resource(self, uri: str, request_id: str) -> ServerContents:
        """Return the contents of a resource, as `call_tool` calls a tool.

        Raises:
            RoundhouseError: as `call_tool`; `resource_not_found`: the server says so.
        """
        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=uri))
        try:
            result = await self._ask(request, _RESOURCE, request_id)
        except MCPError as error:
            if error.code in _NO_RESOURCE:
                raise RoundhouseError("resource_not_found", f"{error.message:.300}", param="uri") from None
            raise self._failure(error.message) from None
        return contents_of(result, self.route.max_output_kib * 1024)

    async def _ask(
        self, request: _Request, answer: TypeAdapter[_Answer | InputRequiredResult], request_id: str
    ) -> _Answer:
        """Send a request as `call_tool` says, and return the answer. Raises MCPError: the server refuses it."""
        with self._calls.hold(request_id):
            async with self._places:
                try:
                    return await self._send(request, answer)
                except MCPError as error:
                    if error.message != _SESSION_ENDED or error.code != INVALID_REQUEST:
                        raise
                await self._connect_again()
                return await self._send(request, answer)

    async def _connect_again(self) -> None:
        """Have a server connected that did not take a call, because it does not know the session."""
        if self.status.state == "connected":
            self._set_state("connecting", None)
        try:
            async with asyncio.timeout(CONNECT_S):
                is_connected = await self.wait_connected()
        except TimeoutError:
            is_connected = False
        if not is_connected:
            raise self._failure("it was started anew, and cannot be connected")

    async def _send(self, request: _Request, answer: TypeAdapter[_Answer | InputRequiredResult]) -> _Answer:
        client = self._client
        if client is None:
            raise self._failure("it is not connected")
        try:
            try:
                # Not `client.call_tool`: that checks the result by a schema of the server's, at any cost.
                result = await client.session.send_request(request, answer)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
                await self._refresh(client)  # it knows the tool's headers by the listing
                result = await client.session.send_request(request, answer)
        except MCPError as error:
            if error.code in LOST or (error.code == INTERNAL_ERROR and error.message == _REFUSED):
                self._wake.set()  # is it still there?
                raise self._failure(_shorten(error.message)) from error
            raise
        except ValidationError as error:
            raise self._failure(_describe_failure(error)) from None
        except RuntimeError as error:
            raise self._failure("it was disconnected") from error
        if isinstance(result, InputRequiredResult):
            raise self._failure("it asks its user for input, which there is no way to give here")
        return result

    def _failure(self, reason: str) -> RoundhouseError:
        return RoundhouseError(
            "tool_failed", f"The MCP server {self.route.name} failed: {reason[:300].removesuffix('.')}."
        )

    async def _keep_connected(self) -> None:
        """Connect again and again. Returns where the connection of a retired server ends."""
        if self.route.url is None:
            await asyncio.get_running_loop().create_future()
        failures = 0
        while True:
            connected_before = self._changed
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001 - whatever a server makes of the library: it is tried again
                reason = _describe_failure(error)
            if self._calls.is_closed:
                return
            was_connected = self._changed is not connected_before
            failures = 1 if was_connected else failures + 1
            if was_connected and reason == _SESSION_ENDED:
                self._set_state("connecting", None)  # it was started anew, and is there
                continue
            if self.status.state != "down":
                logger.warning("the MCP server %s is down: %s; trying on", self.route.name, reason)
            self._set_state("down", reason)
            await self._wait_for_retry(failures)

    async def _serve(self) -> None:
        """Connect, and stay connected. Never returns; raises where the connection ends."""
        self._wake.clear()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_S):
                client = await stack.enter_async_context(await self._open_client(stack))
                await self._refresh(client)
            self._client = client
            stack.callback(self._forget_client)
            if self.status.state == "down":
                logger.info("the MCP server %s is connected again", self.route.name)
            self._set_state("connected", None)
            listener = asyncio.create_task(self._listen(client))
            stack.callback(listener.cancel)
            while True:
                await self._wait_for_wake(REFRESH_S)
                async with asyncio.timeout(CONNECT_S):
                    await self._refresh(client)
                # A call was told that its session has ended, and it has not. Where that was told during the refresh,
                # the next one shows it.
                if self.status.state == "connecting" and not self._wake.is_set():
                    self._set_state("connected", None)
                await asyncio.sleep(FEWEST_REFRESH_S)

    async def _open_client(self, stack: AsyncExitStack) -> Client:
        """Return a client that is to be entered."""
        route = self.route
        assert route.url is not None
        if route.tls is not None:
            tls: ssl.SSLContext | bool = await asyncio.to_thread(HostContexts().find_context, route.tls)
        else:
            tls = await asyncio.to_thread(httpx2.create_ssl_context) if route.url.startswith("https:") else False
        transport = BoundedTransport(
            httpx2.AsyncHTTPTransport(
                verify=tls,
                trust_env=False,
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=IDLE_S),
                socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)],
            ),
            max_output_kib=route.max_output_kib,
            within_s=route.timeout_s + CONNECT_S,
            calls=self._calls,
            server_name=route.tls.server_name if route.tls is not None else None,
        )
        headers = {name: value.get_secret_value() for name, value in route.headers.items()}
        if route.token is not None:
            headers["authorization"] = f"Bearer {route.token.get_secret_value()}"
        # No limit of reading: a server may be silent for as long as nothing changes. Calls have their own time.
        timeout = httpx2.Timeout(CONNECT_S, read=None)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False)
        )
        self._left_out = transport.left_out
        streams = streamable_http_client(route.url, http_client=http, max_sse_event_size=transport.most_bytes)
        return Client(
            streams,
            client_info=Implementation(name="roundhouse", version="1"),
            message_handler=self._take_message,
            cache=None,
        )

    async def _take_message(self, message: object) -> None:
        """Take what the server tells by itself. Nothing but changes of its lists matters."""
        if isinstance(message, _CHANGES):
            self._wake.set()

    async def _listen(self, client: Client) -> None:
        """Have changes of the lists told, where the server speaks a version of the protocol that asks for this."""
        delay_s = FEWEST_REFRESH_S
        while True:
            try:
                async with client.listen(
                    tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
                ) as changes:
                    delay_s = FEWEST_REFRESH_S
                    async for _ in changes:
                        self._wake.set()
            except ListenNotSupportedError:
                return
            except Exception:  # whatever a server makes of the library: it is tried again
                logger.debug("listening to an MCP server ended", exc_info=True)
                delay_s = min(REFRESH_S, 2 * delay_s)
            self._wake.set()  # what it told meanwhile was missed
            await asyncio.sleep(delay_s)

    async def _refresh(self, client: Client) -> None:
        """List what the server offers. Raises MCPError, or TimeoutError of the caller's: it does not answer."""
        self._left_out.clear()
        offers = await list_offers(client)
        unreadable = list(dict.fromkeys(self._left_out))
        tools, left_out = await asyncio.to_thread(self._offer_tools, offers.tools)
        resources = offers.resources if self.offers(READ_RESOURCE) else ()
        prompts = offers.prompts if self.offers(GET_PROMPT) else ()
        status = self.status
        catalog = Catalog(tools, resources, prompts, tuple((unreadable + left_out + offers.left_out)[:MOST_LEFT_OUT]))
        self.status = ServerStatus(status.name, status.state, status.since, status.reason, catalog)

    def _offer_tools(self, tools: list[Any]) -> tuple[dict[str, OfferedTool], list[str]]:
        """Return the tools that are offered, and why others are not. Reading their schemas takes long."""
        offered: dict[str, OfferedTool] = {}
        left_out = []
        listed = {
            f"{self.route.name}{SEPARATOR}{tool.name}": tool for tool in reversed(tools) if self.offers(tool.name)
        }
        names = name_tools(reversed(listed))
        for full_name, tool in reversed(listed.items()):
            if not 0 < len(tool.name) <= LONGEST_NAME:
                left_out.append(f"A tool is left out: its name {tool.name!r:.100} cannot be used.")
                continue
            name = names[full_name]
            if tool.execution is not None and tool.execution.task_support == "required":
                left_out.append(f"The tool {tool.name} is left out: it runs only as a task, which is not supported.")
                continue
            try:
                check = ArgumentCheck(tool.input_schema)
            except SchemaProblem as problem:
                left_out.append(f"The tool {tool.name} is left out: {problem}.")
                continue
            called = _ServerTool(self, tool.name, _spec_of(name, full_name, self.route, tool))
            offered[name] = OfferedTool(self.route, called, check)
        return offered, left_out

    def offers(self, own_name: str) -> bool:
        """Return whether the server's declaration allows a tool of the server, or lists no tools and so allows all.
        `own_name`: the server's name for the tool, or `GET_PROMPT` or `READ_RESOURCE`."""
        return self._patterns is None or self._patterns.matches(own_name)

    def _forget_client(self) -> None:
        self._client = None

    def _set_state(self, state: ServerState, reason: str | None) -> None:
        if state == "connecting":
            self._wake.set()
        if (state, reason) != (self.status.state, self.status.reason):
            self.status = ServerStatus(self.route.name, state, self._clock(), reason, self.status.catalog)
        self._tell_change()

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_for_wake(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _wait_for_retry(self, failures: int) -> None:
        longest_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
        await asyncio.sleep(FIRST_RETRY_S / 2)  # however many calls want it sooner
        await self._wait_for_wake(longest_s * (0.5 + random.random() / 2))  # noqa: S311 - no secret


class _ServerTool:
    """A tool of a server, as the runner calls it."""

    def __init__(self, connection: ServerConnection, own_name: str, spec: ToolSpec) -> None:
        """`own_name`: the server's name for it."""
        self.spec = spec
        self._connection = connection
        self._own_name = own_name

    async def run(self, call: ToolCall) -> ToolResult:
        """Call it. Raises RoundhouseError `tool_failed`."""
        return await self._connection.call_tool(self._own_name, call)


def _spec_of(name: str, own_name: str, route: McpServerRoute, tool: Any) -> ToolSpec:
    annotations = tool.annotations
    title = tool.title or (annotations.title if annotations is not None else None) or tool.name
    return ToolSpec(
        name=name,
        display_name=title[:LONGEST_DESCRIPTION],
        description=(tool.description or "")[:LONGEST_DESCRIPTION],
        parameters=tool.input_schema,
        # What says nothing of itself may do anything.
        writes=not (annotations is not None and annotations.read_only_hint is True),
        server=route.name,
        own_name=None if own_name == name else own_name,
    )


def _shorten(message: str) -> str:
    """Return the reason alone, without what the library puts before the message of an error."""
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message


def _describe_failure(error: Exception) -> str:
    """Return why a connection ended, for an operator, without its address or its headers."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return f"{_shorten(error.message):.300}"
    if isinstance(error, TimeoutError):
        return f"it does not answer within {CONNECT_S:g} s"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"its answer cannot be read: {'.'.join(map(str, first['loc'])):.150}: {first['msg']:.100}"
    return f"the connection ended ({type(error).__name__})"
