"""Rankings, in Jina's and Cohere's forms. They are read and written anew: engines differ in all but the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import PlainDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.rerank import codec
from gateway.protocols.rerank.codec import Ranking, Version


class RerankDialect(PlainDialect):
    """Rankings. A request's `state` is the `Ranking` that it asks for."""

    def __init__(self, version: Version) -> None:
        self._version = version

    def check(self, request: InferenceRequest, route: ModelRoute) -> None:
        """See Dialect."""
        super().check(request, route)
        if request.state is None:
            request.state = codec.read(request.fields, self._version)

    def body_for(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        return json_bytes(codec.written(request.state) | {"model": route.served_name})

    def whole(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """See Dialect."""
        ranking: Ranking = request.state
        return lambda body: errors.encoded(
            codec.answered(ranking, errors.decoded(body), request.id, request.model, self._version)
        )


RERANK: Final = RerankDialect(1)
RERANK_V2: Final = RerankDialect(2)
