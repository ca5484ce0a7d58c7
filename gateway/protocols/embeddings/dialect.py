"""OpenAI's embeddings, passed through. The gateway itself handles `dimensions` where the engine does not know the
field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common import bodies, errors
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.known_fields import EMBEDDING_FIELDS
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.embeddings import codec
from gateway.protocols.embeddings.codec import Shortening


class EmbeddingsDialect(JsonDialect):
    """Dialect of `/v1/embeddings`, passed through, except that the gateway shortens vectors where the engine does not.
    `check_request` sets a request's `state` to the `Shortening` to do, or None; `engine_body` and `get_body_converter`
    read it there."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse invalid input, and set `request.state` to a `Shortening`, or None if the vectors pass as they are.

        Raises:
            RoundhouseError: `invalid_request`, or the code of a capability that the model lacks. Whether the model has
                embeddings of this size shows in its answer only.
        """
        super().check_request(request, route)
        codec.check_fields(request.outline_fields)
        dimensions = request.outline_fields.get("dimensions")
        request.state = None
        if dimensions is not None and (route.shortens_embeddings or not route.takes_dimensions):
            # Base64 decodes ten times as fast as JSON numbers, and every engine of ours knows it.
            is_unpacked = not route.takes_dimensions and request.outline_fields.get("encoding_format") != "base64"
            request.state = Shortening(dimensions, route.shortens_embeddings, route.name, is_unpacked)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body without fields that the engine must not get, without `dimensions` and `encoding_format` where
        they are null, and without `dimensions` if the gateway shortens; then it may ask for vectors in base64.
        `as_stream` is ignored. Call after `check_request`."""
        request = bodies.without_foreign_fields(request, EMBEDDING_FIELDS, route)
        fields = request.outline_fields
        dropped_names = [name for name in _OPTIONAL if name in fields and fields[name] is None]
        shortening: Shortening | None = request.state
        if shortening is not None:
            dropped_names.append("dimensions")
        if not dropped_names:
            return bodies.as_named(request, route.served_name)
        kept_fields = {name: value for name, value in fields.items() if name not in dropped_names} | {
            "model": route.served_name
        }
        if shortening is not None and shortening.is_unpacked:
            kept_fields["encoding_format"] = "base64"
        return json_bytes(kept_fields)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that shortens the vectors; None if nothing is to be shortened. Call after
        `check_request`. The function raises RoundhouseError as `shorten_vectors`."""
        shortening: Shortening | None = request.state
        return None if shortening is None else lambda body: _shorten_body(body, shortening)


EMBEDDINGS: Final = EmbeddingsDialect()
_OPTIONAL: Final = ("dimensions", "encoding_format")


def _shorten_body(body: bytes, shortening: Shortening) -> bytes:
    answer = codec.shorten_vectors(errors.decode_json(body), shortening)
    return body if answer is None else errors.encode_json(answer)
