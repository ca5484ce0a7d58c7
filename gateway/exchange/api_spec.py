"""The declaration of one inference API: who may ask it, how its requests are read, and what its answers may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from controller.schema.errors import RoundhouseError
from controller.schema.keys import KeyScope
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import BodyKind, InferenceRequest, parse_native, parse_request
from gateway.routing.table import Routes
from gateway.server.call import ClientCall
from gateway.streams.stream_ids import name_model


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """An API that engines answer, directly or through a translation. Route groups in `gateway/api` declare them."""

    path: str
    """The path as clients request it; `{id}` stands for a number. `api_matrix.SERVING_OPTIONS` maps it to engines."""
    method: str = "POST"
    streams: bool = False
    """Requests may set `stream`."""
    gathers: bool = False
    """Requests cannot set `stream`, but the gateway may ask the engine for a stream and answer with the whole of it
    (see `gathering`), as it may for every API that streams."""
    takes_slot: bool = True
    """A request occupies one of the engine's slots and is admitted; False: the request is sent at once."""
    inputs: tuple[str, ...] = ()
    """Names of fields that may list inputs to be answered one by one, each of which costs an engine as much as a
    request of its own."""
    whole_copies: int = 0
    """How often a large body is held that is decoded whole and what follows from that: its blocks, its text, what is
    decoded of it, and what is sent or stored of that. 0: its long texts pass as they came."""
    scope: KeyScope = field(kw_only=True)
    """The scope that a key needs. It has no default, so the gateway does not start with an API that declares none."""
    is_inner_state: bool = False
    """The API changes or reveals an engine's inner state. It is served only if `engine_state_routes` is set."""
    names_replica: bool = False
    """A request may choose the replica that answers (`?replica=`), and the answer names the replica (`X-Replica`)."""
    body: BodyKind = "object"
    """The JSON that a request must hold. Where that is no object, the query names the model."""
    state: Literal["none", "read", "made", "completion", "message"] = "none"
    """How requests use stored state: not at all; they continue a response; they make a response, which may search
    files; they make a chat completion, which documents may ground, and which is stored if the request says so; or they
    make a message, which documents may ground. `dispatcher` maps it to hooks."""
    is_native: bool = False
    """llama.cpp's own API. A request may name its model in the body or the query, and need not where only one model
    serves the API."""
    resumes: bool = False
    """A stream with `X-Conversation-Id` is kept, and can be read again."""

    @property
    def changes_replica(self) -> bool:
        """Whether requests change what one engine keeps, so that one of several replicas must be chosen."""
        return self.is_inner_state and self.method != "GET"

    @property
    def dialect(self) -> Dialect:
        """The `Dialect` of the API's family (OpenAI, Anthropic, llama.cpp ...), by which clients are answered.

        Use it for what does not depend on the engine: errors and heartbeats.
        """
        return SERVING_OPTIONS[self.path][0].dialect

    def read_request(self, body: bytes | LargeBody, client: ClientCall, routes: Routes) -> InferenceRequest:
        """Return the decoded request. Whether the routing table has its model is not checked.

        `routes`: the table in force, for an API whose requests need not name their model. `client`: for the query and
        the headers of the request.

        Raises:
            RoundhouseError: `invalid_json` if the body is no JSON of the kind `body`; `invalid_request` if it names no
                model, or `stream` or `stream_options` is wrong, or a number is too large.
        """
        if not self.is_native:
            request = self._parse_request(body, client)
            request.target = self.path
            return request
        path = client.path.decode("latin-1") if "{" in self.path else self.path
        return parse_native(
            body, client.query, path, routes.sole_model(SERVING_OPTIONS[self.path][0].required_api), body=self.body
        )

    def _parse_request(self, body: bytes | LargeBody, client: ClientCall) -> InferenceRequest:
        try:
            return parse_request(body, may_stream=self.streams)
        except RoundhouseError as error:
            model = name_model(client.headers) if self.resumes and error.param == "model" else None
            if model is None:
                raise
            return parse_request(body, may_stream=self.streams, usual_model=model)
