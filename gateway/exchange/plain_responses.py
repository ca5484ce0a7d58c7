"""Responses that nobody keeps: their ids, and the hooks of a gateway without the assistant, which refuse what needs
it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ConditionalHook, ExchangeHooks, StateUse, Trigger
from gateway.protocols.api_matrix import serving_option
from gateway.protocols.common.file_parts import NAMING_TYPES, find_named_files
from gateway.protocols.common.grounding import FIELD
from gateway.protocols.responses.context import AnswerTimes, ResponseContext
from gateway.protocols.responses.file_search import is_file_search
from gateway.protocols.responses.mcp import is_mcp
from gateway.server.asgi import Header

_OPEN_RESPONSES: Final = b"openresponses-version"
"""Request header of clients that expect answers as in the Open Responses specification."""
_OPEN_CLIENT: Final = b"ai-sdk/open-responses/"
"""In the `User-Agent` of a client that expects them without that header. Of OpenAI's events it would show each thought
twice, because it joins the text and its summary."""
TOKEN_LENGTH: Final = 48
"""Letters of the random part of ids."""
_KEPT: Final = ("previous_response_id", "conversation", "background")
"""Fields of a request that need what is kept of earlier responses, or keep this one."""


def id_of(token: str) -> str:
    """Return the id of a response. `token`: `TOKEN_LENGTH` random hex digits, which the ids of its items contain,
    too."""
    return f"resp_{token}"


def item_ids(token: str) -> Callable[[str], str]:
    """Return a function that makes a new id of an item of a response from a prefix, such as `msg`.

    Each call returns another id. `token`: as in `id_of`. The id contains the token, so that `response_of` finds the
    response that the item is stored with.
    """
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{token}{next(numbers):04x}"


def response_of(item_id: str) -> str | None:
    """Return the id of the response that the item is stored with, if its id is from `item_ids`; None: the part after
    the last `_` is too short to hold a token. The form is not checked further. Nothing is looked up: the response need
    not exist."""
    token_and_number = item_id.rpartition("_")[2]
    return id_of(token_and_number[:TOKEN_LENGTH]) if len(token_and_number) > TOKEN_LENGTH else None


def new_response_context(headers: Sequence[Header], clock: Callable[[], float]) -> ResponseContext:
    """Return the context of a new response, with a random id.

    `headers`: those of the request, names in lower case. `clock`: Unix time in seconds.
    """
    token, now = secrets.token_hex(TOKEN_LENGTH // 2), clock()
    return ResponseContext(
        id=id_of(token),
        created_at=int(now),
        times=AnswerTimes(now),
        clock=clock,
        new_id=item_ids(token),
        is_open_responses=expects_open_responses(headers),
    )


def expects_open_responses(headers: Iterable[Header]) -> bool:
    """Whether a client expects answers as in the Open Responses specification, by its headers (names in lower case)."""
    return any(name == _OPEN_RESPONSES or (name == b"user-agent" and _OPEN_CLIENT in value) for name, value in headers)


def _begin_response(exchange: Exchange, _: ModelRoute) -> None:
    fields = exchange.request.outline_fields
    for name in _KEPT:
        if fields.get(name):
            raise _needs_assistant(name)
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if is_file_search(tool) or is_mcp(tool):
            raise _needs_assistant(f"tools[{index}]")
    exchange.request.state = new_response_context(exchange.client.headers, exchange.services.clock)


def _refuse_documents(exchange: Exchange, _: ModelRoute) -> None:
    if exchange.request.outline_fields.get(FIELD) not in (None, False):
        raise _needs_assistant(FIELD)


def _refuse_kept_files(exchange: Exchange, route: ModelRoute) -> None:
    request = exchange.request
    named_files = find_named_files(request.outline_fields)
    if named_files and not serving_option(exchange.api.path, request, route).takes_files(route):
        raise _needs_assistant(named_files[0].id_place)


def _needs_assistant(place: str) -> RoundhouseError:
    message = f"`{place}` needs what this gateway does not have: ROUNDHOUSE_ASSISTANT is off."
    return RoundhouseError("invalid_request", message, param=place)


_NAMED: Final = ConditionalHook(_refuse_kept_files, Trigger(parts=NAMING_TYPES))
_RESPONSES: Final = ExchangeHooks(on_request=(_begin_response, _NAMED))
_GROUNDED: Final = ExchangeHooks(on_request=(ConditionalHook(_refuse_documents, Trigger(frozenset((FIELD,)))), _NAMED))
PLAIN_HOOKS: Final[Mapping[StateUse, ExchangeHooks]] = {
    "read": _RESPONSES,
    "made": _RESPONSES,
    "completion": _GROUNDED,
    "message": _GROUNDED,
}
"""The hooks of requests by the `state` of their API, where nothing is kept, no tool is run and nothing is searched."""
