"""GET /tools, POST /tools and GET /tools/servers: what a caller may have called, a call, and the MCP servers."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.forwarding import RunningForwards
from gateway.api.stored_requests import BODY_CODES, body_of, read_fields
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.route_access import require_access
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.server.asgi import ClientGoneError, local_address_of, request_id_of
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.clients import find_document_tenant
from gateway.tools.mcp_client.catalog import ServerState, ServerStatus
from gateway.tools.mcp_client.servers import McpServers
from gateway.tools.runner import ToolRunner
from gateway.tools.spec import ToolKind, ToolSpec

PATH: Final = "/tools"
SERVERS_PATH: Final = "/tools/servers"
_LIST_CODES: Final = ("scope_required", *INGRESS_CODES)
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
    *BODY_CODES,
    *_LIST_CODES,
)
_BODY: Final = body_of(
    {
        "tool": {"type": "string", "description": "Name of the tool."},
        "params": {"type": "object", "description": "Arguments of the tool, as its `definition` describes them."},
    },
    "tool",
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


class ListedResource(BaseModel):
    """A resource of an MCP server, or a template of resources."""

    uri: str
    name: str
    description: str
    media_type: str | None
    is_template: bool = Field(description="Whether `uri` has placeholders.")


class ListedPrompt(BaseModel):
    """A prompt of an MCP server, with the names of its arguments."""

    name: str
    description: str
    required: list[str]
    optional: list[str]


class ListedServer(BaseModel):
    """A declared MCP server, and what it offers; of one that is not connected: what it offered last."""

    server: str
    state: ServerState
    since: float = Field(description="Unix time in seconds of the last change of `state`.")
    tools: list[str] = Field(description="Those that the caller may call, with the server's name before theirs.")
    resources: list[ListedResource]
    prompts: list[ListedPrompt]
    reason: str | None = Field(
        description="Why the server is not connected, or why tools of it are not offered; null: no reason, or the "
        "caller may not administer."
    )


class PostedCalls:
    """Runs the calls of tools that clients send, until they end, their clients leave, or `end_all`. One object serves
    all requests of the gateway."""

    def __init__(self, runner: ToolRunner) -> None:
        self._runner = runner
        self._running = RunningForwards()

    def end_all(self) -> None:
        """End all running calls with `gateway_stopping`, and return before they have ended. New calls are still
        served."""
        self._running.end_all()

    async def call_tool(self, request: Request, fields: Fields) -> Response:
        """Call the tool that the body of a request names, and return the answer when the call has ended.

        The answer has status 200, and `plain_text_response` with the tool's text, or `error` if the tool ran and
        failed. `fields`: the body's. The client's leaving ends the call: what is returned then is an empty answer,
        which nobody gets.

        Raises:
            RoundhouseError: `invalid_request` for a body without a tool's name, or whose `params` is no object;
                `gateway_stopping`, after which the tool may have done its work; or as `ToolRunner.call_tool`.
        """
        name, arguments = fields.get("tool"), fields.get("params", {})
        if not isinstance(name, str) or not name:
            raise RoundhouseError("invalid_request", "`tool` must be the name of a tool.", param="tool")
        if not isinstance(arguments, dict):
            raise RoundhouseError("invalid_request", "`params` must be an object.", param="params")
        caller: Caller = request.state.caller
        try:
            with Lifetime(None) as lifetime, self._running.hold(lifetime):
                lifetime.watch_client(request.receive, lambda: False)
                result = await self._runner.call_tool(
                    caller,
                    name,
                    arguments,
                    request_id=request_id_of(request.scope),
                    document_tenant=find_document_tenant(caller, request.headers.raw),
                )
        except ClientGoneError:
            return Response()  # which nobody gets
        return _answer({"error" if result.is_error else "plain_text_response": result.text})


def declare(
    app: FastAPI, runner: ToolRunner, servers: McpServers, calls: PostedCalls, gate: AdminGate, max_body_bytes: int
) -> None:
    """Add `GET` and `POST /tools`, and `GET /tools/servers`, to `app`. `gate` tells who may administer, and so sees all
    MCP servers, and why one is down. `max_body_bytes`: largest request body."""

    @app.get(
        PATH,
        summary="Tools",
        description="Lists the tools that the caller may call now; none, where none are enabled.\n\n"
        + codes_paragraph(_LIST_CODES),
        tags=["tools"],
        responses=error_responses(*_LIST_CODES) | ANY_OTHER,
        response_model=list[ListedTool],
    )
    @require_access("inference")
    async def list_tools(request: Request) -> Response:
        return _answer([_describe_tool(spec) for spec in runner.list_tools(request.state.caller)])

    @app.post(
        PATH,
        summary="Call a tool",
        description="Calls a tool and waits for its answer. A tool that ran and failed answers status 200 with "
        "`error`; a call that could not be made is answered with an error code. The client's leaving ends the "
        "call.\n\n" + codes_paragraph(_CALL_CODES),
        tags=["tools"],
        responses=error_responses(*_CALL_CODES) | ANY_OTHER,
        response_model=TextAnswer | FailedAnswer,
        openapi_extra=_BODY,
    )
    @require_access("inference")
    async def call_tool(request: Request) -> Response:
        return await calls.call_tool(request, await read_fields(request, max_body_bytes))

    @app.get(
        SERVERS_PATH,
        summary="MCP servers",
        description="Lists the declared MCP servers that have a tool which the caller may call, with their resources "
        "and prompts. Who may administer sees all of them, and why one is down.\n\n" + codes_paragraph(_LIST_CODES),
        tags=["tools"],
        responses=error_responses(*_LIST_CODES) | ANY_OTHER,
        response_model=list[ListedServer],
    )
    @require_access("inference")
    async def list_servers(request: Request) -> Response:
        caller: Caller = request.state.caller
        is_admin = gate.allows_admin(caller, local_address_of(request.scope))
        listed = [_describe_server(status, caller, is_admin=is_admin) for status in servers.list_status()]
        return _answer([each for each in listed if is_admin or each["tools"]])


def _describe_tool(spec: ToolSpec) -> Fields:
    definition = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {
        "tool": spec.name,
        "display_name": spec.display_name,
        "type": spec.kind,
        "permissions": {"write": spec.writes},
        "definition": {"type": "function", "function": definition},
    }


def _describe_server(status: ServerStatus, caller: Caller, *, is_admin: bool) -> Fields:
    catalog = status.catalog
    reasons = [*([] if status.reason is None else [status.reason]), *catalog.left_out]
    return {
        "server": status.name,
        "state": status.state,
        "since": status.since,
        "tools": sorted(name for name in catalog.tools if caller.may_call_tool(name)),
        "resources": [
            {
                "uri": each.uri,
                "name": each.name,
                "description": each.description,
                "media_type": each.media_type,
                "is_template": each.is_template,
            }
            for each in catalog.resources
        ],
        "prompts": [
            {
                "name": each.name,
                "description": each.description,
                "required": list(each.required),
                "optional": list(each.optional),
            }
            for each in catalog.prompts
        ],
        "reason": " ".join(reasons) if is_admin and reasons else None,
    }


def _answer(content: Fields | list[Fields]) -> Response:
    return Response(encode_json(content), media_type="application/json")
