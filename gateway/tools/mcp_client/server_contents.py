"""The messages of prompts and the contents of resources, in MCP's own form, bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.protocols.common.conversation import Fields
from gateway.tools.spec import cut_texts

if TYPE_CHECKING:
    from mcp_types import GetPromptResult, ReadResourceResult


@dataclass(frozen=True, slots=True)
class ServerContents:
    """The answer of an MCP server to `prompts/get` or `resources/read`, with its texts cut."""

    parts: list[Fields]
    """Messages, or contents, with the fields of MCP that `messages_of` and `contents_of` name."""
    size: int
    """Bytes of all texts, before they were cut, and characters of all binary data in base64."""


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
        return {"type": "resource_link", "uri": str(block.uri), "name": block.name, **_media_type_of(block)}
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
