"""The MCP servers: GET /tools/servers lists them and what they offer; their prompts and resources are read below it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from controller.schema.tools import GET_PROMPT, READ_RESOURCE, SEPARATOR
from gateway.api.declare import ANY_OTHER, codes_paragraph, error_responses
from gateway.api.stored_requests import BODY_CODES, answer_json, body_of, read_fields
from gateway.api.tools import LIST_CODES, PATH, PostedCalls
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.route_access import require_access
from gateway.protocols.common.conversation import Fields
from gateway.server.asgi import local_address_of, request_id_of
from gateway.tenancy.api_keys import Caller
from gateway.tools.mcp_client.catalog import OfferedPrompt, OfferedResource, ServerState, ServerStatus
from gateway.tools.mcp_client.result_text import LONGEST_URI
from gateway.tools.mcp_client.servers import McpServers
from gateway.tools.runner import ToolRunner

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
    *BODY_CODES,
    *LIST_CODES,
)
_PROMPT_CODES: Final = ("prompt_not_found", "tool_arguments_invalid", *_ASK_CODES)
_READ_CODES: Final = ("resource_not_found", *_ASK_CODES)
_BOUNDS: Final = (
    "Texts are cut together at the server's `max_output_kib`, as a tool's output is; binary data is whole, for the "
    "answer of the server is bounded. They are what the server says: never show them as HTML."
)
_PROMPT_BODY: Final = body_of(
    {
        "arguments": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Arguments of the prompt by name, which are texts.",
        }
    },
)
_READ_BODY: Final = body_of(
    {
        "uri": {
            "type": "string",
            "maxLength": LONGEST_URI,
            "description": "Address of the resource: one that the server lists, or one made of a template of it.",
        }
    },
    "uri",
)


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
    mime_type: str | None = Field(default=None, alias="mimeType", description="Missing if the server tells none.")


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


def declare(
    app: FastAPI, runner: ToolRunner, servers: McpServers, calls: PostedCalls, gate: AdminGate, max_body_bytes: int
) -> None:
    """Add `GET /tools/servers`, and the routes that read prompts and resources of a server, to `app`. `gate` tells who
    may administer, and so sees all MCP servers, and why one is down. `max_body_bytes`: largest request body."""

    @app.get(
        SERVERS_PATH,
        summary="MCP servers",
        description="Lists the declared MCP servers of which the caller may use something: tools, resources or "
        "prompts. Who may administer sees all of them, and why one is down.\n\n" + codes_paragraph(LIST_CODES),
        tags=["tools"],
        responses=error_responses(*LIST_CODES) | ANY_OTHER,
        response_model=list[ListedServer],
    )
    @require_access("inference")
    async def list_servers(request: Request) -> Response:
        caller: Caller = request.state.caller
        is_admin = gate.allows_admin(caller, local_address_of(request.scope))
        listed = [_describe_server(status, caller, is_admin=is_admin) for status in servers.list_status()]
        return answer_json(
            [each for each in listed if is_admin or each["tools"] or each["resources"] or each["prompts"]]
        )

    @app.post(
        READ_PATH,
        summary="Read a resource of an MCP server",
        description="Reads a resource, by MCP's `resources/read`, and answers its `contents` as MCP has them. The key "
        f"must be allowed `SERVER__resources/read`. {_BOUNDS} The client's leaving ends the request.\n\n"
        + codes_paragraph(_READ_CODES),
        tags=["tools"],
        responses=error_responses(*_READ_CODES) | ANY_OTHER,
        response_model=ResourceAnswer,
        openapi_extra=_READ_BODY,
    )
    @require_access("inference")
    async def read_resource(request: Request, server: str) -> Response:
        fields = await read_fields(request, max_body_bytes)
        uri = fields.get("uri")
        if not isinstance(uri, str) or not 0 < len(uri) <= LONGEST_URI:
            message = f"`uri` must be the address of a resource, of at most {LONGEST_URI} characters."
            raise RoundhouseError("invalid_request", message, param="uri")
        asked = runner.read_resource(request.state.caller, server, uri, request_id=request_id_of(request.scope))
        contents = await calls.run_until_gone(request, asked)
        return answer_json({"contents": contents})

    @app.post(
        PROMPT_PATH,
        summary="Get a prompt of an MCP server",
        description="Asks a server for a prompt, by MCP's `prompts/get`, and answers its `messages` as MCP has them. "
        f"The key must be allowed `SERVER__prompts/get`. {_BOUNDS} The client's leaving ends the request.\n\n"
        + codes_paragraph(_PROMPT_CODES),
        tags=["tools"],
        responses=error_responses(*_PROMPT_CODES) | ANY_OTHER,
        response_model=PromptAnswer,
        openapi_extra=_PROMPT_BODY,
    )
    @require_access("inference")
    async def get_prompt(request: Request, server: str, name: str) -> Response:
        fields = await read_fields(request, max_body_bytes)
        arguments = fields.get("arguments", {})
        if not isinstance(arguments, dict):
            raise RoundhouseError("invalid_request", "`arguments` must be an object.", param="arguments")
        caller: Caller = request.state.caller
        asked = runner.get_prompt(caller, server, name, arguments, request_id=request_id_of(request.scope))
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
        "tools": sorted(name for name in catalog.tools if caller.may_call_tool(name)),
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
