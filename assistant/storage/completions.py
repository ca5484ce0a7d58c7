"""Stored chat completions: requests save them, and the routes below /v1/chat/completions read and change them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from assistant.storage.pagination import ListQuery, list_object, may_see_model, paginate_items
from assistant.storage.records import CompletionFilter, StoredCompletion, is_id, list_messages
from assistant.storage.store import StateStore
from contract.errors import RoundhouseError
from gateway.exchange.plain_responses import TOKEN_LENGTH
from gateway.exchange.stored_end import ObjectWrite, failed_write
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import read_metadata
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.table import LiveRoutes
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)

_PREFIX: Final = "chatcmpl-"


class StoredCompletions:
    """All stored chat completions of a gateway. Belongs to the event loop.

    A completion belongs to its tenant. A key that is limited to some models sees the completions of these models.
    Coroutines raise RoundhouseError: `completion_not_found` if the caller may not see a completion with the id, it has
    expired, or nothing is stored; `response_store_failed` if the database fails.
    """

    def __init__(self, store: StateStore | None, live: LiveRoutes, clock: Callable[[], float]) -> None:
        """`store` None: nothing is stored, and no completion is found. `live`: the routing table in force. `clock`:
        Unix time in seconds."""
        self._store = store
        self._live = live
        self._clock = clock

    # For requests that make completions

    @property
    def stores_completions(self) -> bool:
        """Whether this gateway stores completions."""
        return self._store is not None

    def new_id(self) -> str:
        """Return a new, random id of a completion.

        Ids that engines make are not unique: some count, some draw 1 of 1,000.
        """
        return _PREFIX + secrets.token_hex(TOKEN_LENGTH // 2)

    def save_completion(
        self, tenant: str, model: str, completion: Fields, messages: list[Any], metadata: Mapping[str, str]
    ) -> ObjectWrite:
        """Begin to store a completion object under its `id`. A failure is logged and told by the result, not raised.

        Call only if `stores_completions`; otherwise AssertionError is raised. `model`: the model's own name.
        `completion`: from `describe_completion`. `messages`: those messages of the request that are JSON
        objects. Later reads find the completion, unless writing it failed.
        """
        assert self._store is not None, "what is not stored is not saved"
        completion_id = completion["id"]
        try:
            encoded = json_bytes(completion), json_bytes(messages)
        except RecursionError:
            logger.error("the chat completion %s is not stored: it is nested too deeply", completion_id)  # noqa: TRY400
            return failed_write("it is nested too deeply")
        stored = StoredCompletion(completion_id, tenant, model, self._clock(), dict(metadata), *encoded)
        return self._store.save_object(stored)

    # For the routes of stored completions. Each raises RoundhouseError `completion_not_found` or
    # `response_store_failed`.

    async def list_page(self, caller: Caller, wanted: CompletionFilter, query: ListQuery) -> Fields:
        """Return a page of the completions that the caller may see, as a list object.

        The newest completion comes first unless `query.is_ascending`. `wanted.model` may be an alias. The list is empty
        if nothing is stored.

        Raises:
            RoundhouseError: `invalid_request` if `query.after` is not the id of a completion that the caller may see;
                `response_store_failed`.
        """
        if self._store is None:
            return list_object([], has_more=False)
        routes = self._live.current
        if wanted.model is not None and wanted.model in routes.names:
            wanted = wanted._replace(model=routes.names[wanted.model].name)
        return await self._store.submit_job(
            lambda database: database.completions.list_page(
                caller.tenant, wanted, query, lambda model: may_see_model(routes, caller, model)
            )
        )

    async def get(self, caller: Caller, completion_id: str) -> Fields:
        """Return the completion object, with its metadata. Does not count as a use, which would delay its expiry.

        Raises:
            RoundhouseError: `completion_not_found` if there is none that the caller may see, or nothing is stored;
                `response_store_failed`.
        """
        found = await self._store_of(completion_id).submit_job(
            lambda database: database.completions.find(caller.tenant, completion_id)
        )
        if found is None or not may_see_model(self._live.current, caller, found.model):
            raise completion_not_found(completion_id)
        return found.completion

    async def list_messages(self, caller: Caller, completion_id: str, query: ListQuery) -> Fields:
        """Return a page of the messages of a completion's request, as a list object. Each message has an `id`.

        The last message comes first unless `query.is_ascending`.

        Raises:
            RoundhouseError: `completion_not_found`, `response_store_failed`; `invalid_request` if no message has the id
                `query.after`.
        """
        await self.get(caller, completion_id)
        messages = await self._store_of(completion_id).submit_job(
            lambda database: database.completions.load_messages(caller.tenant, completion_id)
        )
        return paginate_items(list_messages(completion_id, messages), query)

    async def update(self, caller: Caller, completion_id: str, fields: Fields) -> Fields:
        """Replace a completion's metadata by the `metadata` of `fields`, a request's body.

        Returns the new completion object. The completion counts as used now. A body without `metadata`, or with null,
        removes all metadata.

        Raises:
            RoundhouseError: `completion_not_found`, `response_store_failed`; `invalid_request` if `metadata` is wrong.
        """
        metadata = read_metadata(fields)
        await self.get(caller, completion_id)
        updated = await self._store_of(completion_id).submit_change(
            lambda database: database.completions.update_metadata(caller.tenant, completion_id, metadata)
        )
        if updated is None:
            raise completion_not_found(completion_id)
        return updated

    async def delete(self, caller: Caller, completion_id: str) -> None:
        """Delete a chat completion. Waits until the change is committed.

        Raises RoundhouseError `completion_not_found` if there is none that the caller may see, or nothing is stored; or
        `response_store_failed`.
        """
        await self.get(caller, completion_id)
        is_deleted = await self._store_of(completion_id).submit_change(
            lambda database: database.completions.delete(caller.tenant, completion_id)
        )
        if not is_deleted:
            raise completion_not_found(completion_id)

    def _store_of(self, completion_id: str) -> StateStore:
        if self._store is None or not is_id(completion_id):
            raise completion_not_found(completion_id)
        return self._store


def completion_not_found(completion_id: str) -> RoundhouseError:
    """Return, without raising it, `completion_not_found` (404) for a chat completion that the caller cannot see."""
    message = f"Chat completion with id {completion_id!r:.100} not found."
    return RoundhouseError("completion_not_found", message, param="completion_id")
