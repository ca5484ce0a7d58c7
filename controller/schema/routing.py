"""Messages between the controller and the gateways.

The controller sends a whole `RoutingTable` on every change; gateways send `GatewayReport`s. Each report names the table
in force at the gateway, so that the controller knows which replicas may still get new requests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, SecretStr

from controller.schema.admin import Capabilities
from controller.schema.keys import Key
from controller.schema.status import SCHEMA_VERSION, ModelState, Wire

ThinkingControl = Literal["chat_template_kwargs", "thinking", "reasoning_effort"]
"""The field of a chat completion request that switches an engine's thinking on or off."""
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
"""The field of a chat completion request that limits the tokens of the answer."""
SessionBinding = Literal["slot", "name", "conversation"]
"""How a request tells its engine which session it belongs to. `slot`: by `id_slot`, one of `target_inflight` slots.
`name`: by `session_id`. `conversation`: by `session_id`, too, and the engine computes a session anew when its sampling
changes."""


def _reveal_secret(secret: SecretStr) -> str:
    return secret.get_secret_value()


# Only the link between controller and gateways transports the token itself; repr and logs mask it.
Token = Annotated[SecretStr, PlainSerializer(_reveal_secret, when_used="json")]
"""A bearer token. JSON holds it in plain text; `repr` and `str` mask it."""


class Stamp(Wire):
    """Version of a routing table. A newer controller has a greater `epoch`, its newer table a greater `seq`."""

    epoch: int
    seq: int

    def __le__(self, other: Stamp) -> bool:
        return (self.epoch, self.seq) <= (other.epoch, other.seq)

    def __lt__(self, other: Stamp) -> bool:
        return (self.epoch, self.seq) < (other.epoch, other.seq)


class Endpoint(Wire):
    """The address of one replica, or of a remote model, and how to send requests to it."""

    replica: str
    base_url: str = Field(description="Scheme, host, port and perhaps a path, without a trailing slash.")
    api_prefix: str = Field(
        default="/v1",
        description="What stands in place of a path's leading /v1 there; empty for a remote whose base_url holds it. "
        "The engine's URL of /v1/x is base_url + api_prefix + /x.",
    )
    token: Token | None = Field(default=None, description="Sent to the engine as a bearer token.")
    kv_cache_tokens: int | None = Field(
        default=None,
        description="Tokens that its KV cache holds, of all requests inside together; null: not known, or they cannot "
        "get into each other's way.",
    )
    preempts_when_full: bool = Field(
        default=False,
        description="It makes room in its KV cache by computing requests again; false: all requests inside fail.",
    )
    remote: bool = Field(default=False, description="Somebody else's server; false: one of the controller's replicas.")


class RemoteProbe(Wire):
    """How gateways probe the health of a remote model, which somebody else's server serves."""

    url: str = Field(description="Answers a GET with 200 when all is well.")
    spec: str = Field(
        description="Identifies the model's definition: what was seen under another one says nothing of this one."
    )
    token: Token | None = Field(default=None, description="Sent to it as a bearer token.")
    reset_count: int = Field(
        default=0, description="How often an operator had it asked anew: a new number is asked at once."
    )
    interval_s: float = Field(default=2.0, description="Least seconds from one answer to the next question.")
    timeout_s: float = Field(default=5.0, description="Seconds that an answer may take.")


class ModelRoute(Wire):
    """One model in the routing table: its state, its endpoints, and what requests its engine takes."""

    name: str
    backend: str
    state: ModelState
    created: int = Field(description="Unix time in seconds at which the model was declared, for /v1/models.")
    aliases: tuple[str, ...] = ()
    served_name: str = Field(description="What the engine itself calls the model.")
    endpoints: tuple[Endpoint, ...] = Field(default=(), description="Ready, and not being drained.")
    remote_probe: RemoteProbe | None = Field(
        default=None,
        description="What to ask, whatever the state; null: it is no remote model, nobody wants it, or its key cannot "
        "be read.",
    )
    target_inflight: int = Field(default=1, description="Requests that one replica serves at a time.")
    max_choices: int | None = Field(
        default=None, description="Most answers to one request (`n`) that the engine makes; null: it has no such limit."
    )
    choices_take_slots: bool = Field(
        default=True, description="Each of several answers to one request takes one of the replica's slots."
    )
    queue_limit: int | None = Field(
        default=None, description="Requests that may wait per replica; null: the gateway's own setting."
    )
    notices_leaving: bool = Field(
        default=True,
        description="The engine stops at once when the client of a blocking request leaves. Where it does not, "
        "the gateway asks for a stream and makes the blocking answer of it.",
    )
    apis: tuple[str, ...] = Field(default=(), description="Paths that the engine offers, such as /v1/embeddings.")
    extra_fields: tuple[str, ...] | None = Field(
        default=None,
        description="Fields of requests that the engine gets beside those that the API family knows; null: all of "
        "them, for it is an engine of ours.",
    )
    autoload: bool = False
    reason: str | None = Field(default=None, description="Why it is not loaded, where that is wanted.")
    last_error: str | None = None
    retry_at: float | None = None
    progress: float | None = Field(default=None, description="0 to 1 while it loads, where the engine tells.")
    capabilities: Capabilities = Field(default_factory=Capabilities)
    thinking_control: ThinkingControl | None = Field(
        default=None, description="How the engine is told to think or not; null: it has no switch."
    )
    max_tokens_field: MaxTokensField = Field(
        default="max_tokens", description="What the engine calls the most tokens of a chat completion."
    )
    context_length: int | None = Field(
        default=None, description="Tokens of prompt and answer together, of one request; null: not known."
    )
    longest_token: int | None = Field(
        default=None,
        description="Bytes of text, white space and U+2581 aside, that one token stands for at most; null: not known, "
        "or the engine cuts prompts. Of it follows how many tokens a prompt has at least.",
    )
    system_first: bool = Field(
        default=False,
        description="The model's chat template takes system messages at the beginning alone: gateways write later ones "
        "into the turn beside them.",
    )
    takes_dimensions: bool = Field(
        default=False, description="The engine knows the `dimensions` of a request for embeddings."
    )
    shortens_embeddings: bool = Field(
        default=False, description="The gateway may cut embeddings to the `dimensions` that a request asks for."
    )
    session_cache: int = Field(
        default=0, description="Sessions of which each replica keeps what it has computed; 0: sessions mean nothing."
    )
    session_binding: SessionBinding | None = Field(
        default=None,
        description="How the engine is told a request's session; null: it finds what it has computed by itself.",
    )


class RoutingTable(Wire):
    """All models and API keys as a gateway routes by them. An immutable snapshot, replaced as a whole."""

    kind: Literal["table"] = "table"
    schema_version: int = SCHEMA_VERSION
    instance: str
    stamp: Stamp
    models: tuple[ModelRoute, ...] = ()
    keys: tuple[Key, ...] = Field(default=(), description="Empty: no keys are declared.")


class RemoteResult(Wire):
    """Health of a remote model as one gateway finds it by probes and requests."""

    spec: str = Field(description="That of the `RemoteProbe`.")
    at: float = Field(
        description="Unix time of the answer, by the gateway's clock. No two results of one have the same."
    )
    error: str | None = Field(default=None, description="What is wrong with it, without secrets; null: it is well.")
    retry_at: float | None = Field(
        default=None,
        description="Unix time when it is asked again; null: it is well, or it refuses its key, or an older gateway.",
    )


class GatewayReport(Wire):
    """The state of one gateway's requests. Sent on change, at most a few times a second, and every few seconds."""

    kind: Literal["report"] = "report"
    schema_version: int = SCHEMA_VERSION
    gateway_id: str
    addresses: tuple[str, ...] = Field(
        default=(), description="URLs that it listens on, as it is told them; empty: an older gateway, which says none."
    )
    stamp: Stamp | None = Field(description="The table that the gateway works by; null before the first.")
    inflight: dict[str, int] = Field(
        default_factory=dict, description="Replica name to requests inside; zero left out."
    )
    queued: dict[str, int] = Field(
        default_factory=dict, description="Model to requests waiting in the gateway, for a load or for a slot."
    )
    waits_since: dict[str, float] = Field(
        default_factory=dict, description="Of these, model to Unix time since which the first one waits."
    )
    last_used: dict[str, float] = Field(
        default_factory=dict, description="Model to Unix time when a request of it last began or ended."
    )
    demand: dict[str, float] = Field(
        default_factory=dict, description="Autoload model that is not loaded, to Unix time of the last request for it."
    )
    leaving: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description="Replica that the table no longer routes to, to the requests still inside: id to Unix time since.",
    )
    ending: bool = Field(default=False, description="The gateway ends: nothing is inside, and nothing will be.")
    failed: dict[str, float] = Field(
        default_factory=dict, description="Replica that refused or broke a connection, to Unix time. Asks for a probe."
    )
    remotes: dict[str, RemoteResult] = Field(
        default_factory=dict, description="Remote model to how it is; absent: that is not decided yet."
    )
