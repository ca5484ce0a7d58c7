"""Searches of documents for requests that want their answers grounded, asked from the retrieval program."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote

from pydantic import ValidationError

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from controller.schema.errors import ERROR_CODES, RoundhouseError
from retrieval.schema.headers import TENANT_HEADER
from retrieval.schema.search import SearchRequest, SearchResult

TOKEN_REFUSED: Final = 401
"""Status with which retrieval refuses the gateway's token, and nothing else."""
REFUSED_WORDS: Final = "retrieval refuses the gateway's token: both must read the same ROUNDHOUSE_RETRIEVAL_TOKEN_FILE"


def check_token_accepted(answer: ProgramAnswer) -> None:
    """Raise ProgramGoneError if an answer of retrieval refuses the gateway's token; else do nothing."""
    if answer.status == TOKEN_REFUSED:
        raise ProgramGoneError(REFUSED_WORDS)


class DocumentSearch:
    """Searches one retrieval program. Made once."""

    def __init__(self, retrieval: ProgramClient | None) -> None:
        """`retrieval`: an entered client; None: the program is turned off."""
        self._retrieval = retrieval

    async def search(self, tenant: str, request: SearchRequest, request_id: str) -> SearchResult:
        """Return the hits among a tenant's documents, best first.

        Raises:
            RoundhouseError: `retrieval_disabled`, `retrieval_unavailable`, or what retrieval answers; a wrong field is
                named as one of `rag`.
        """
        if self._retrieval is None:
            raise RoundhouseError("retrieval_disabled", "This Roundhouse keeps no documents.")
        headers = {
            TENANT_HEADER: quote(tenant, safe=""),
            "content-type": "application/json",
            "x-request-id": request_id,
        }
        body = request.model_dump_json(exclude_none=True).encode()
        try:
            async with await self._retrieval.send_request("POST", "/v1/search", headers, body) as answer:
                status, content = answer.status, await answer.read_body()
                check_token_accepted(answer)
        except ProgramGoneError as error:
            raise RoundhouseError("retrieval_unavailable", f"Retrieval does not answer: {error}.") from None
        if status != 200:
            raise _read_error(content)
        try:
            return SearchResult.model_validate_json(content)
        except ValidationError:
            raise RoundhouseError("retrieval_unavailable", "Retrieval's answer cannot be read.") from None


def _read_error(content: bytes) -> RoundhouseError:
    try:
        error = json.loads(content)["error"]
        code, message, param = error["code"], str(error["message"]), error["param"]
    except (ValueError, KeyError, TypeError):
        code, message, param = "retrieval_unavailable", "Retrieval's answer cannot be read.", None
    if code not in ERROR_CODES:
        code = "retrieval_unavailable"
    return RoundhouseError(code, message, param=f"rag.{param}" if isinstance(param, str) else None)
