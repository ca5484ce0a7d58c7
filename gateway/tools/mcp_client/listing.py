"""Lists what an MCP server offers, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, Tool

from gateway.tools.mcp_client.bounded_transport import TRANSPORT_FAILED
from gateway.tools.mcp_client.catalog import OfferedPrompt, OfferedResource
from gateway.tools.mcp_client.result_text import LONGEST_NAME, LONGEST_URI, describe_prompt, describe_resource

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
    """Ask a connected server for everything that it says it has. Raises MCPError: it does not answer, or refuses."""
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
