"""Which session a request belongs to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.responses.context import ResponseContext
from gateway.server.asgi import Header

SESSION_FIELD: Final = "session_id"
CONVERSATION_HEADER: Final = b"x-conversation-id"
_MODEL_MARK: Final = "::"
"""Separates a conversation's id from the model's name in `CONVERSATION_HEADER`."""
_KEY_BYTES: Final = 16


def find_session_name(fields: Fields, headers: Sequence[Header], context: ResponseContext | None) -> str | None:
    """Return the client's name for the session of a request; None: the request belongs to no session.

    The first of these that is present and not empty names it: the field `session_id`, the header `X-Conversation-Id`
    (up to `::`), the conversation of a response, the id of the oldest item that `previous_response_id` leads to, the
    field `prompt_cache_key`, and the `session_name` of the context. `fields`: the request body. A `prompt_cache_key`
    that is no string counts as missing. `headers`: names in lower case. `context`: the ResponseContext of the request,
    with its history loaded; None for any API but `/v1/responses`.

    Raises:
        RoundhouseError: `invalid_request`: `session_id` is not a string.
    """
    name = optional_field(fields, SESSION_FIELD, str) if SESSION_FIELD in fields else None
    if not name:
        name = _header_name(headers)
    if not name and context is not None:
        name = context.conversation_id or _first_item_id(context)
    if not name:
        cache_key = fields.get("prompt_cache_key")
        name = cache_key if isinstance(cache_key, str) else None
    if not name and context is not None:
        name = context.session_name
    return name or None


def derive_session_key(tenant: str, model: str, name: str) -> bytes:
    """Return the key of a tenant's session of a model: 16 bytes, the same in every gateway.

    Equal names of two tenants, or of two models, give different keys. Engines see the key, never the name.
    """
    digest = blake2b(digest_size=_KEY_BYTES)
    for part in (tenant, model, name):
        encoded = part.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def _header_name(headers: Sequence[Header]) -> str:
    for name, value in headers:
        if name == CONVERSATION_HEADER:
            return value.decode("latin-1").partition(_MODEL_MARK)[0]
    return ""


def _first_item_id(context: ResponseContext) -> str | None:
    """Return the id of the oldest item before the request's own, which all responses of a chain share."""
    item_id = context.history[0].get("id") if context.history else None
    return item_id if isinstance(item_id, str) else None
