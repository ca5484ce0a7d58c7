"""What an MCP server's answers say, as texts and entries of the gateway's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gateway.tools.mcp_client.catalog import OfferedPrompt, OfferedResource, PromptArgument

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Prompt, Resource, ResourceTemplate

LONGEST_DESCRIPTION: Final = 4096
LONGEST_NAME: Final = 128
"""Characters of the name of a tool, for which MCP allows no more, or of a prompt."""
LONGEST_URI: Final = 2048
"""Characters of a resource's address."""
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
        return f"[resource {part.name:.200}: {part.uri!s:.500}]"
    resource = part.resource
    if hasattr(resource, "text"):
        return str(resource.text)
    return f"[resource {resource.uri!s:.500}, {resource.mime_type or 'of no type':.100}]"


def is_usable_name(name: str) -> bool:
    """Return whether a tool of this name can be offered: 1 to `LONGEST_NAME` characters of printable ASCII without
    blanks."""
    return 0 < len(name) <= LONGEST_NAME and name.isascii() and name.isprintable() and " " not in name


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
    """Return a prompt for lists; long descriptions are cut."""
    arguments = tuple(
        PromptArgument(each.name[:LONGEST_NAME], (each.description or "")[:LONGEST_DESCRIPTION], bool(each.required))
        for each in (prompt.arguments or [])[:MOST_ARGUMENTS]
    )
    return OfferedPrompt(prompt.name, (prompt.description or "")[:LONGEST_DESCRIPTION], arguments)
