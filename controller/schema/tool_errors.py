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
        "The arguments of the call do not fit the tool's JSON Schema, or those of a prompt what it takes.",
        (
            "Correct what `param` names; `definition` in GET /tools has the schema, GET /tools/servers what a prompt "
            "takes.",
        ),
    ),
    ErrorCode(
        "tools_disabled",
        403,
        _REQUEST,
        "No tool and no MCP server is declared in the desired state.",
        ("Declare tools under `tools` or `mcp_servers`, as docs/tools.md says.",),
    ),
    ErrorCode(
        "tool_not_allowed",
        403,
        _REQUEST,
        "The key may not call the tool, or may not use the prompts or the resources of the MCP server.",
        (
            "GET /tools lists what the key may call; name the tool in the key's `tools`, for prompts and resources of "
            "a server `SERVER__prompts/get` and `SERVER__resources/read`.",
        ),
    ),
    ErrorCode(
        "tool_not_found",
        404,
        _REQUEST,
        "No tool of the name is enabled, and no connected MCP server has it.",
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
        "The conversations of responses whose tools the gateway runs, which it keeps while tools run, take all the "
        "memory that they may have: half of `ROUNDHOUSE_BODY_MEMORY_MIB`.",
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
        "The tool could not be run: its MCP server is down or broke off, its answer is too large or cannot be read, or "
        "its process ended at its limits.",
        ("Read the message; GET /tools/servers shows the state of MCP servers, with reasons for the scope `admin`.",),
    ),
    ErrorCode(
        "tool_timeout",
        504,
        _SERVER,
        "The tool did not answer in time, and the call was ended. What it did until then is not undone.",
        ("Ask for less, or raise `timeout_s` of the tool or of its MCP server.",),
    ),
)
