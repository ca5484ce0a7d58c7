"""The error codes of tools and of the servers of tools (MCP)."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"

TOOL_ERRORS: Final = (
    ErrorCode(
        "tool_arguments_invalid",
        400,
        _REQUEST,
        "The arguments do not fit the tool's JSON Schema, or those of the prompt.",
        (
            "Correct what `param` names; `definition` in GET /tools has the schema, GET /tools/servers what a prompt "
            "takes.",
        ),
    ),
    ErrorCode(
        "tools_disabled",
        403,
        _REQUEST,
        "No tool and no MCP server is declared.",
        ("Declare tools under `tools` or `mcp_servers`, as docs/tools.md says.",),
    ),
    ErrorCode(
        "tool_not_allowed",
        403,
        _REQUEST,
        "The key may not use the tool, or the prompts or resources of the MCP server.",
        (
            "GET /tools lists what the key may call; name the tool in the key's `tools`, for prompts and resources of "
            "a server `SERVER__prompts/get` and `SERVER__resources/read`.",
        ),
    ),
    ErrorCode(
        "tool_not_found",
        404,
        _REQUEST,
        "No enabled tool and no connected MCP server has the name.",
        ("GET /tools lists the names.",),
    ),
    ErrorCode(
        "mcp_server_not_found",
        404,
        _REQUEST,
        "No MCP server of the name is declared.",
        ("GET /tools/servers lists the names.",),
    ),
    ErrorCode(
        "prompt_not_found",
        404,
        _REQUEST,
        "The MCP server has no prompt of the name.",
        ("GET /tools/servers lists the prompts of each server.",),
    ),
    ErrorCode(
        "resource_not_found",
        404,
        _REQUEST,
        "The MCP server says that it has no such resource.",
        ("GET /tools/servers lists the resources of each server, and the templates of their addresses.",),
    ),
    ErrorCode(
        "tool_rounds_full",
        503,
        _SERVER,
        "Conversations of responses with tools take all of their memory, half of `ROUNDHOUSE_BODY_MEMORY_MIB`.",
        (
            "Try again when other responses have ended.",
            "Send a shorter conversation, lower `max_output_kib` of the tools, or raise `ROUNDHOUSE_BODY_MEMORY_MIB`.",
        ),
        retry=True,
    ),
    ErrorCode(
        "tool_failed",
        502,
        _SERVER,
        "The MCP server is down or broke off, the answer is too large or unreadable, or the process hit its limits.",
        ("Read the message; GET /tools/servers shows the state of MCP servers, with reasons for the scope `admin`.",),
    ),
    ErrorCode(
        "tool_timeout",
        504,
        _SERVER,
        "The tool did not answer in time. Its effects until then stay.",
        ("Ask for less, or raise `timeout_s` of the tool or of its MCP server.",),
    ),
)
