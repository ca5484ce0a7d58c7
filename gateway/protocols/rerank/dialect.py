"""Rankings in Jina's and Cohere's forms. Requests and answers are written anew, because engines agree on nothing but
scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.known_fields import RERANK_FIELDS, drop_foreign_fields
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.rerank import codec
from gateway.protocols.rerank.codec import Ranking, Version


class RerankDialect(JsonDialect):
    """Dialect of the rerank paths, in one of the two forms of the API (`Version`): 1 is Jina's and Cohere's v1, 2 is
    Cohere's v2. Requests and answers are written anew. `check_request` sets a request's `state` to the `Ranking` that
    it asks for; `engine_body` and `get_body_converter` need it."""

    def __init__(self, version: Version) -> None:
        self._version = version

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse an invalid request, and set `request.state` to its `Ranking` unless it is set. See `Dialect`.

        Raises:
            RoundhouseError: `invalid_request`, the code of a capability that the model lacks, or `invalid_json`: a
                string of a large body is not valid.
        """
        super().check_request(request, route)
        if request.state is None:
            request.state = codec.read_ranking(request.fields, self._version)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the engine's request, made of `request.state` (call `check_request` before), without fields that the
        engine must not get. `as_stream` is ignored. See `Dialect`."""
        fields = drop_foreign_fields(codec.write_request(request.state), RERANK_FIELDS, route)
        return json_bytes(fields | {"model": route.served_name})

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that writes the engine's ranking in the client's form; never None. The function raises
        RoundhouseError `engine_disconnected` if the engine's answer is no ranking."""
        ranking: Ranking = request.state
        return lambda body: errors.encode_json(
            codec.build_answer(ranking, errors.decode_json(body), request.id, request.model, self._version)
        )


RERANK: Final = RerankDialect(1)
RERANK_V2: Final = RerankDialect(2)
