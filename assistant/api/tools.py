"""Tools over HTTP: `/tools` lists and calls them, `/tools/servers` has the MCP servers with their prompts and
resources, and `/mcp` offers Roundhouse itself to agents (streamable HTTP, without sessions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, WithJsonSchema

from assistant.mcp_server.handlers import CALLER_KEY, ServedTools, ToolCaller
from assistant.tools.mcp_client.catalog import LONGEST_URI, OfferedPrompt, OfferedResource, ServerState, ServerStatus
from assistant.tools.mcp_client.servers import McpServers
from assistant.tools.runner import ToolRunner
from assistant.tools.spec import ToolKind, ToolSpec
from contract.route_spec import RouteSpec
from contract.tools import GET_PROMPT, READ_RESOURCE, SEPARATOR
from gateway.api.declare import HttpRoutes, RequestBody, Rule, answer_json
from gateway.api.forwarding import Lifetime, RunningForwards, name_actor, read_short_body
from gateway.ingress.access_rules import AdminGate
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.mcp import MCP_PATH
from gateway.server.asgi import (
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    local_address_of,
    request_id_of,
)
from gateway.tenancy.api_keys import Caller, find_document_tenant

PATH: Final = "/tools"
_CALL_CODES: Final = (
    "tool_arguments_invalid",
    "tools_disabled",
    "tool_not_allowed",
    "tool_not_found",
    "tool_failed",
    "tool_timeout",
    "retrieval_disabled",
    "retrieval_unavailable",
    "gateway_stopping",
)
_route = partial(RouteSpec, tag="tools")

_Result = TypeVar("_Result")


class ToolCallBody(RequestBody):
    """Body of `POST /tools`: the tool that is called, and its arguments."""

    tool: Annotated[str, Field(min_length=1), Rule("must be the name of a tool")] = Field(
        description="Name of the tool."
    )
    params: Annotated[dict[str, Any], Rule("must be an object")] = Field(
        default_factory=dict, description="Arguments of the tool, as its `definition` describes them."
    )


class ToolPermissions(BaseModel):
    """What a call of the tool may do, so that a page can ask its user before."""

    write: bool = Field(description="Whether it may change something.")


class ListedTool(BaseModel):
    """A tool that the caller may call."""

    tool: str = Field(description="Name of the tool; of an MCP server's: the server's name, `__`, and the tool's.")
    display_name: str = Field(description="Name for people.")
    type: ToolKind = Field(description="`builtin`: Roundhouse's own. `mcp`: an MCP server's.")
    permissions: ToolPermissions
    definition: dict[str, Any] = Field(description="The tool in the form of `tools` of a chat completion.")


class TextAnswer(BaseModel):
    """What the tool answered: the content of the message with the role `tool`."""

    plain_text_response: str


class FailedAnswer(BaseModel):
    """The tool ran and failed. The whole object, as JSON text, is the content of the message with the role `tool`."""

    error: str


class PostedCalls(RunningForwards):
    """Runs the calls of tools that clients send, until they end, their clients leave, or `end_all`. One object serves
    all requests of the gateway."""

    def __init__(self, runner: ToolRunner) -> None:
        super().__init__()
        self._runner = runner

    async def call_tool(self, request: Request, wanted: ToolCallBody) -> Response:
        """Call the tool that the body of a request names, and return the answer when the call has ended.

        The answer has status 200, and `plain_text_response` with the tool's text, or `error` if the tool ran and
        failed. If the client leaves, the call is ended, and an empty answer is returned, which nobody gets.

        Raises:
            RoundhouseError: `gateway_stopping`, after which the tool may have done its work; or as
                `ToolRunner.call_tool`.
        """
        caller: Caller = request.state.caller
        result = await self.run_until_gone(
            request,
            self._runner.call_tool(
                caller,
                wanted.tool,
                wanted.params,
                request_id=request_id_of(request.scope),
                document_tenant=find_document_tenant(caller, request.headers.raw),
            ),
        )
        if result is None:
            return Response()
        return answer_json({"error" if result.is_error else "plain_text_response": result.text})

    async def run_until_gone(self, request: Request, call: Coroutine[Any, Any, _Result]) -> _Result | None:
        """Run a call until it ends, and return its result; None: the client left, which ended the call. Raises what the
        call raises, and RoundhouseError `gateway_stopping` after `end_all`."""
        try:
            with Lifetime(None) as lifetime, self.hold(lifetime):
                lifetime.watch_client(request.receive, lambda: False)
                return await call
        except ClientGoneError:
            return None


def declare_tools(routes: HttpRoutes, runner: ToolRunner, calls: PostedCalls) -> None:
    """Add `GET /tools`, which lists the tools that a caller may call, and `POST /tools`, which calls one, to `routes`.

    `runner`: lists and calls the tools. `calls`: the calls under way, which the gateway ends when it stops."""

    @routes.add(_route("GET", PATH, "Tools", answer=list[ListedTool]))
    async def list_tools(request: Request) -> Response:
        """Lists the tools that the caller may call now; none, where none are enabled."""
        return answer_json([_describe_tool(spec) for spec in runner.list_tools(request.state.caller)])

    @routes.add(
        _route("POST", PATH, "Call a tool", answer=TextAnswer | FailedAnswer, body=ToolCallBody, codes=_CALL_CODES)
    )
    async def call_tool(request: Request, body: ToolCallBody) -> Response:
        """Calls a tool and waits for its answer. A tool that ran and failed answers status 200 with `error`; a call
        that could not be made is answered with an error code. The client's leaving ends the call."""
        return await calls.call_tool(request, body)


def _describe_tool(spec: ToolSpec) -> Fields:
    definition = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {
        "tool": spec.name,
        "display_name": spec.display_name,
        "type": spec.kind,
        "permissions": {"write": spec.writes},
        "definition": {"type": "function", "function": definition},
    }


SERVERS_PATH: Final = f"{PATH}/servers"
PROMPT_PATH: Final = f"{SERVERS_PATH}/{{server}}/prompts/{{name:path}}"
READ_PATH: Final = f"{SERVERS_PATH}/{{server}}/resources/read"
_ASK_CODES: Final = (
    "tools_disabled",
    "tool_not_allowed",
    "mcp_server_not_found",
    "tool_failed",
    "tool_timeout",
    "gateway_stopping",
)
_PROMPT_CODES: Final = ("prompt_not_found", "tool_arguments_invalid", *_ASK_CODES)
_READ_CODES: Final = ("resource_not_found", *_ASK_CODES)
_BOUNDS: Final = (
    "Texts are cut together at the server's `max_output_kib`, as a tool's output is; binary data is whole, for the "
    "answer of the server is bounded. They are what the server says: never show them as HTML."
)


class WantedResource(RequestBody):
    """Body of the route that reads a resource of an MCP server: the address of the resource."""

    uri: Annotated[
        str,
        Field(min_length=1, max_length=LONGEST_URI),
        Rule(f"must be the address of a resource, of at most {LONGEST_URI} characters"),
    ] = Field(description="Address of the resource: one that the server lists, or one made of a template of it.")


class PromptArguments(RequestBody):
    """Arguments of a prompt. That they are texts is checked later, against what the prompt takes."""

    arguments: Annotated[
        dict[str, Any],
        Rule("must be an object"),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = Field(default_factory=dict, description="Arguments of the prompt by name, which are texts.")


class ListedResource(BaseModel):
    """A resource of an MCP server, or a template of resources."""

    uri: str
    name: str
    description: str
    media_type: str | None
    is_template: bool = Field(description="Whether `uri` has placeholders.")


class ListedArgument(BaseModel):
    """An argument of a prompt. Its value is a text."""

    name: str
    description: str
    required: bool


class ListedPrompt(BaseModel):
    """A prompt that an MCP server lists, and the arguments that it takes."""

    name: str
    description: str
    arguments: list[ListedArgument]


class ListedServer(BaseModel):
    """A declared MCP server, and what it offers; of one that is not connected: what it offered last."""

    server: str
    state: ServerState
    since: float = Field(description="Unix time in seconds of the last change of `state`.")
    tools: list[str] = Field(description="Those that the caller may call, with the server's name before theirs.")
    resources: list[ListedResource] = Field(description="Empty if the caller may not call `SERVER__resources/read`.")
    prompts: list[ListedPrompt] = Field(description="Empty if the caller may not call `SERVER__prompts/get`.")
    reason: str | None = Field(
        description="Why the server is not connected, or why something of it is not offered; null: no reason, or the "
        "caller may not administer."
    )


class TextContents(BaseModel):
    """The contents of an MCP resource that is a text, at most the server's `max_output_kib` of it."""

    uri: str
    mime_type: str | None = Field(default=None, alias="mimeType", description="Missing if the server tells none.")
    text: str


class BlobContents(BaseModel):
    """The contents of an MCP resource that is binary, whole."""

    uri: str
    mime_type: str | None = Field(default=None, alias="mimeType", description="Missing if the server tells none.")
    blob: str = Field(description="The bytes in base64.")


class TextBlock(BaseModel):
    """A content block of a prompt's message: a text."""

    type: Literal["text"]
    text: str


class MediaBlock(BaseModel):
    """A content block of a prompt's message: an image or a sound."""

    type: Literal["image", "audio"]
    data: str = Field(description="The bytes in base64.")
    mime_type: str = Field(alias="mimeType")


class ResourceBlock(BaseModel):
    """A content block of a prompt's message: the contents of a resource."""

    type: Literal["resource"]
    resource: TextContents | BlobContents


class ResourceLinkBlock(BaseModel):
    """A content block of a prompt's message: the address of a resource, without its contents."""

    type: Literal["resource_link"]
    uri: str
    name: str
    mime_type: str | None = Field(default=None, alias="mimeType", description="Missing, as the three below: unknown.")
    title: str | None = None
    description: str | None = None
    size: int | None = Field(default=None, description="Bytes of the contents.")


class PromptMessage(BaseModel):
    """One message of a prompt, in the form of MCP's `PromptMessage`: who says it, and one content block."""

    role: Literal["user", "assistant"]
    content: Annotated[TextBlock | MediaBlock | ResourceBlock | ResourceLinkBlock, Field(discriminator="type")]


class PromptAnswer(BaseModel):
    """The messages of a prompt, in their order."""

    messages: list[PromptMessage]


class ResourceAnswer(BaseModel):
    """The contents of a resource, which may have several parts."""

    contents: list[TextContents | BlobContents]


def declare_servers(
    routes: HttpRoutes, runner: ToolRunner, servers: McpServers, calls: PostedCalls, gate: AdminGate
) -> None:
    """Add `GET /tools/servers`, and the routes that read prompts and resources of a server. `gate` tells who may
    administer, and so sees all MCP servers, and why one is down."""

    @routes.add(_route("GET", SERVERS_PATH, "MCP servers", answer=list[ListedServer]))
    async def list_servers(request: Request) -> Response:
        """Lists the declared MCP servers of which the caller may use something: tools, resources or prompts. Who may
        administer sees all of them, and why one is down."""
        caller: Caller = request.state.caller
        is_admin = gate.allows_admin(caller, local_address_of(request.scope))
        listed = [_describe_server(status, caller, is_admin=is_admin) for status in servers.list_status()]
        return answer_json(
            [each for each in listed if is_admin or each["tools"] or each["resources"] or each["prompts"]]
        )

    @routes.add(
        _route(
            "POST",
            READ_PATH,
            "Read a resource of an MCP server",
            "Reads a resource, by MCP's `resources/read`, and answers its `contents` as MCP has them. The key "
            f"must be allowed `SERVER__resources/read`. {_BOUNDS} The client's leaving ends the request.",
            ResourceAnswer,
            body=WantedResource,
            codes=_READ_CODES,
        )
    )
    async def read_resource(request: Request, server: str, body: WantedResource) -> Response:
        asked = runner.read_resource(request.state.caller, server, body.uri, request_id=request_id_of(request.scope))
        contents = await calls.run_until_gone(request, asked)
        return answer_json({"contents": contents})

    @routes.add(
        _route(
            "POST",
            PROMPT_PATH,
            "Get a prompt of an MCP server",
            "Asks a server for a prompt, by MCP's `prompts/get`, and answers its `messages` as MCP has them. "
            f"The key must be allowed `SERVER__prompts/get`. {_BOUNDS} The client's leaving ends the request.",
            PromptAnswer,
            body=PromptArguments,
            codes=_PROMPT_CODES,
        )
    )
    async def get_prompt(request: Request, server: str, name: str, body: PromptArguments) -> Response:
        caller: Caller = request.state.caller
        asked = runner.get_prompt(caller, server, name, body.arguments, request_id=request_id_of(request.scope))
        messages = await calls.run_until_gone(request, asked)
        return answer_json({"messages": messages})


def _describe_server(status: ServerStatus, caller: Caller, *, is_admin: bool) -> Fields:
    catalog, prefix = status.catalog, f"{status.name}{SEPARATOR}"
    reasons = [*([] if status.reason is None else [status.reason]), *catalog.left_out]
    resources = catalog.resources if caller.may_call_tool(f"{prefix}{READ_RESOURCE}") else ()
    prompts = catalog.prompts if caller.may_call_tool(f"{prefix}{GET_PROMPT}") else ()
    return {
        "server": status.name,
        "state": status.state,
        "since": status.since,
        "tools": sorted(name for name, each in catalog.tools.items() if each.tool.spec.is_open_to(caller)),
        "resources": [_describe_resource(each) for each in resources],
        "prompts": [_describe_prompt(each) for each in prompts],
        "reason": " ".join(reasons) if is_admin and reasons else None,
    }


def _describe_resource(resource: OfferedResource) -> Fields:
    return {
        "uri": resource.uri,
        "name": resource.name,
        "description": resource.description,
        "media_type": resource.media_type,
        "is_template": resource.is_template,
    }


def _describe_prompt(prompt: OfferedPrompt) -> Fields:
    arguments: list[dict[str, Any]] = [
        {"name": each.name, "description": each.description, "required": each.is_required} for each in prompt.arguments
    ]
    return {"name": prompt.name, "description": prompt.description, "arguments": arguments}


_DESCRIPTION: Final = """MCP's streamable HTTP transport: each body is one JSON-RPC message. `tools/list` lists the
tools that the key's scopes open, `tools/call` calls one; docs/mcp.md has the tools. There are no sessions, so that GET
and DELETE answer 405. A call that fails is a result with `isError` and the error envelope as `structuredContent`."""
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["string", "integer"]},
        "method": {"type": "string", "examples": ["tools/list"]},
        "params": {"type": "object"},
    },
}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The JSON-RPC answer; as an event stream where progress is told before it.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    202: {"description": "A notification was taken."},
}


def declare_mcp(routes: HttpRoutes, tools: ServedTools) -> None:
    """Add the route `POST /mcp`, which `tools` serves; `ServedTools.run` must be running. Any key has access; `tools`
    offers the tools that the key's scopes allow. A body may have `SHORT_BODY_BYTES` (1 MiB) and take
    `SHORT_BODY_TIMEOUT_S` (60 s)."""

    @routes.add(
        RouteSpec(
            "POST",
            MCP_PATH,
            "Tools for agents (MCP)",
            _DESCRIPTION,
            access="any_key",
            codes=("request_timeout", "body_too_large"),
            tag="operations",
        ),
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _MESSAGE}}}},
        responses=_ANSWERS,
        response_class=Response,
    )
    async def mcp(request: Request) -> Response:
        return _McpResponse(tools)


class _McpResponse(Response):
    """A response that FastAPI calls with the request's scope, so that nothing is held in between."""

    def __init__(self, tools: ServedTools) -> None:
        super().__init__()
        self._tools = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def note_end(message: Message) -> None:
            nonlocal is_answered
            is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            body = await read_short_body(scope, receive)
            scope["state"][CALLER_KEY] = _identify_caller(scope)
            with Lifetime(None) as lifetime:
                lifetime.watch_client(receive, lambda: is_answered)
                await self._tools.serve_request(scope, _receive_again(body), note_end)
        except ClientGoneError:
            pass


def _identify_caller(scope: Scope) -> ToolCaller:
    caller = scope["state"]["caller"]
    return ToolCaller(
        caller=caller,
        actor=f"{name_actor(scope)} by mcp",
        tenant=find_document_tenant(caller, scope["headers"]),
        local_address=local_address_of(scope),
        request_id=request_id_of(scope),
    )


def _receive_again(body: bytes) -> Receive:
    """Return a `receive` that gives the whole body once, and then waits: `Lifetime` notices that the client leaves."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            await asyncio.Event().wait()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
