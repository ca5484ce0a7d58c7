"""GET /tools and POST /tools: what a caller may have called, and a call."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.forwarding import RunningForwards
from gateway.api.stored_requests import BODY_CODES, answer_json, body_of, read_fields
from gateway.ingress.route_access import require_access
from gateway.protocols.common.conversation import Fields
from gateway.server.asgi import ClientGoneError, request_id_of
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.clients import find_document_tenant
from gateway.tools.runner import ToolRunner
from gateway.tools.spec import ToolKind, ToolSpec

PATH: Final = "/tools"
LIST_CODES: Final = ("scope_required", *INGRESS_CODES)
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
    *LIST_CODES,
)
_BODY: Final = body_of(
    {
        "tool": {"type": "string", "description": "Name of the tool."},
        "params": {"type": "object", "description": "Arguments of the tool, as its `definition` describes them."},
    },
    "tool",
)

_Result = TypeVar("_Result")


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
        result = await self.run_until_gone(
            request,
            self._runner.call_tool(
                caller,
                name,
                arguments,
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
            with Lifetime(None) as lifetime, self._running.hold(lifetime):
                lifetime.watch_client(request.receive, lambda: False)
                return await call
        except ClientGoneError:
            return None


def declare(app: FastAPI, runner: ToolRunner, calls: PostedCalls, max_body_bytes: int) -> None:
    """Add `GET` and `POST /tools` to `app`. `max_body_bytes`: largest request body."""

    @app.get(
        PATH,
        summary="Tools",
        description="Lists the tools that the caller may call now; none, where none are enabled.\n\n"
        + codes_paragraph(LIST_CODES),
        tags=["tools"],
        responses=error_responses(*LIST_CODES) | ANY_OTHER,
        response_model=list[ListedTool],
    )
    @require_access("inference")
    async def list_tools(request: Request) -> Response:
        return answer_json([_describe_tool(spec) for spec in runner.list_tools(request.state.caller)])

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


def _describe_tool(spec: ToolSpec) -> Fields:
    definition = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {
        "tool": spec.name,
        "display_name": spec.display_name,
        "type": spec.kind,
        "permissions": {"write": spec.writes},
        "definition": {"type": "function", "function": definition},
    }
