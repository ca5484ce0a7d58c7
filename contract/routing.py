"""Messages between the controller and the gateways.

The controller sends a whole `RoutingTable` on every change; gateways send `GatewayReport`s. Each report names the table
in force at the gateway, so that the controller knows which replicas may still get new requests.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from contract.admin import Capabilities
from contract.hosts import EngineTls
from contract.keys import Key, Token
from contract.status import SCHEMA_VERSION, ModelState, Wire
from contract.tools import McpServerRoute, ToolCallRecord, ToolRoute

MOST_TOOL_CALLS: Final = 64
"""Calls of tools in one report at most: the newest."""

ThinkingControl = Literal["chat_template_kwargs", "thinking", "reasoning_effort"]
"""The field of a chat completion request that switches an engine's thinking on or off."""
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
"""The field of a chat completion request that limits the tokens of the answer."""
SessionBinding = Literal["slot", "name", "conversation"]
"""How a request tells its engine which session it belongs to. `slot`: by `id_slot`, one of `target_inflight` slots.
`name`: by `session_id`. `conversation`: by `session_id`, too, and the engine computes a session anew when its sampling
changes."""


class Stamp(Wire):
    """Version of a routing table, ordered by `epoch`, then `seq`.

    `epoch` increases with each start of a controller, `seq` with each new table of the same controller.
    """

    epoch: int
    seq: int

    def __le__(self, other: Stamp) -> bool:
        return (self.epoch, self.seq) <= (other.epoch, other.seq)

    def __lt__(self, other: Stamp) -> bool:
        return (self.epoch, self.seq) < (other.epoch, other.seq)


class StartAttempt(Wire):
    """One start of a replica's engine."""

    result: str = Field(description="`ok`, or `failed: ` and the reason in one line.")
    duration_ms: int = Field(description="Milliseconds from the start until the engine was ready, or had failed.")


class Endpoint(Wire):
    """The address of one replica, or of a remote model, and how to send requests to it."""

    replica: str
    index: int = Field(default=0, description="Number of the replica among those of its model, from 0.")
    attempts: tuple[StartAttempt, ...] = Field(
        default=(),
        description="The last starts of the replica with its definition, oldest first; the last one brought up the "
        "running engine. Empty: a remote model.",
    )
    base_url: str = Field(
        description="URL of the engine: scheme, host, port, optionally a path, without a trailing slash."
    )
    api_prefix: str = Field(
        default="/v1",
        description="Path that replaces a leading /v1 of the request's path; empty for a remote model whose base_url "
        "includes it. The engine's URL of /v1/x is base_url + api_prefix + /x.",
    )
    token: Token | None = Field(
        default=None, description="Bearer token that the gateway sends to the engine; null: none."
    )
    kv_cache_tokens: int | None = Field(
        default=None,
        description="Capacity of the KV cache in tokens, shared by all running requests; null: not known, or requests "
        "cannot displace each other.",
    )
    preempts_when_full: bool = Field(
        default=False,
        description="Behaviour when the KV cache is full. true: the engine preempts requests and computes them again. "
        "false: all running requests fail.",
    )
    remote: bool = Field(
        default=False, description="true: a server outside of this installation. false: a replica of the controller."
    )
    tls: EngineTls | None = Field(
        default=None,
        description="How to open connections to the relay of another host, whose address is in `base_url`; absent: "
        "none is between, and the URL says it all.",
        exclude_if=lambda tls: tls is None,
    )


class RemoteProbe(Wire):
    """How gateways probe the health of a remote model, which somebody else's server serves."""

    url: str = Field(description="URL to which a GET request returns 200 if the remote model is healthy.")
    spec: str = Field(
        description="Digest of the model's definition. A probe result counts only for the definition with the same "
        "digest."
    )
    token: Token | None = Field(
        default=None, description="Bearer token that the gateway sends with the probe; null: none."
    )
    reset_count: int = Field(
        default=0,
        description="Number of times that an operator reset the model's failures. When it changes, the gateway "
        "probes at once.",
    )
    interval_s: float = Field(default=2.0, description="Minimum seconds from one result to the next probe.")
    timeout_s: float = Field(default=5.0, description="Timeout of a probe, in seconds.")


class ModelRoute(Wire):
    """One model in the routing table: its state, its endpoints, and what requests its engine takes."""

    name: str
    backend: str
    role: Literal["aicore"] | None = Field(default=None, description="As in the model's definition.")
    state: ModelState
    created: int = Field(description="Unix time in seconds at which the model was declared, for /v1/models.")
    aliases: tuple[str, ...] = ()
    served_name: str = Field(description="Name of the model in requests to the engine.")
    endpoints: tuple[Endpoint, ...] = Field(
        default=(), description="Addresses of the replicas that take new requests: ready, and not draining."
    )
    remote_probe: RemoteProbe | None = Field(
        default=None,
        description="How to probe the health of a remote model, in any state; null: not a remote model, not wanted, "
        "or its key cannot be read.",
    )
    target_inflight: int = Field(default=1, description="Number of requests that one replica serves at a time.")
    max_choices: int | None = Field(
        default=None, description="Maximum value of the request field `n` that the engine supports; null: no limit."
    )
    choices_take_slots: bool = Field(
        default=True, description="Whether each choice of a request with `n` above 1 takes a slot of the replica."
    )
    queue_limit: int | None = Field(
        default=None,
        description="Maximum number of requests that wait in the gateway, per replica; null: the gateway's own "
        "setting.",
    )
    notices_leaving: bool = Field(
        default=True,
        description="Whether the engine stops generating when the client of a blocking request disconnects. false: "
        "the gateway requests a stream from the engine instead, and builds the blocking answer from it.",
    )
    apis: tuple[str, ...] = Field(default=(), description="Paths that the engine serves, such as /v1/embeddings.")
    extra_fields: tuple[str, ...] | None = Field(
        default=None,
        description="Request fields that the gateway passes to the engine besides the fields of the API; null: all "
        "fields, because the engine is a replica of the controller.",
    )
    autoload: bool = False
    reason: str | None = Field(
        default=None,
        description="Why the model is not loaded, or which room a model in the state `loading` waits for; null: no "
        "reason.",
    )
    last_error: str | None = Field(
        default=None,
        description="Why the last load failed, in plain words; null: no failure. A controller of an older version adds "
        "the engine's last log lines, on lines of their own.",
    )
    full_error: str | None = Field(
        default=None,
        description="`last_error` with the engine's and the runtime's own words (arguments, paths, log lines), for "
        "those who may administer; null: there are none.",
    )
    exit_code: int | None = Field(
        default=None, description="Exit code of the engine that `last_error` is about; null: not known, or none ended."
    )
    retry_at: float | None = None
    source: str | None = Field(
        default=None,
        description="Reference, in its canonical form, from which the model's files are downloaded; null: none.",
    )
    is_runtime_declared: bool = Field(
        default=False, description="Whether the model was declared through the admin API, and not by the files."
    )
    progress: float | None = Field(
        default=None,
        description="Progress of loading, from 0 to 1; null: not loading, or the engine does not report it.",
    )
    capabilities: Capabilities = Field(default_factory=Capabilities)
    thinking_control: ThinkingControl | None = Field(
        default=None,
        description="Field of a chat completion request that switches the engine's thinking on or off; null: it "
        "cannot be switched.",
    )
    max_tokens_field: MaxTokensField = Field(
        default="max_tokens",
        description="Field of a chat completion request that limits the tokens of the engine's answer.",
    )
    context_length: int | None = Field(
        default=None, description="Maximum tokens of one request, prompt and answer together; null: not known."
    )
    longest_token: int | None = Field(
        default=None,
        description="Maximum bytes of text that one token stands for, not counting white space and U+2581. The "
        "gateway uses it to compute the fewest tokens that a prompt can have. null: not known, or the engine "
        "truncates prompts.",
    )
    system_first: bool = Field(
        default=False,
        description="Whether the model's chat template accepts system messages only at the beginning. true: the "
        "gateway moves later ones into an adjacent turn.",
    )
    takes_dimensions: bool = Field(
        default=False, description="Whether the engine supports the field `dimensions` of an embeddings request."
    )
    shortens_embeddings: bool = Field(
        default=False, description="Whether the gateway may truncate embeddings to the `dimensions` of a request."
    )
    lora_modules: tuple[str, ...] | None = Field(
        default=None,
        description="LoRA modules that the engine serves as models of their own; a request chooses one by its name in "
        "`lora`. null: the engine reads `lora` itself, if at all.",
    )
    session_cache: int = Field(
        default=0, description="Sessions of which each replica keeps what it has computed; 0: sessions mean nothing."
    )
    session_binding: SessionBinding | None = Field(
        default=None,
        description="How the engine is told a request's session; null: it finds what it has computed by itself.",
    )


class RoutingTable(Wire):
    """All models, API keys and tools as a gateway routes by them. An immutable snapshot, replaced as a whole."""

    kind: Literal["table"] = "table"
    schema_version: int = SCHEMA_VERSION
    instance: str
    stamp: Stamp
    models: tuple[ModelRoute, ...] = ()
    keys: tuple[Key, ...] = Field(
        default=(), description="API keys that the gateway accepts; empty: no keys are declared."
    )
    tools: tuple[ToolRoute, ...] = Field(
        default=(), description="Enabled built-in tools, in name order; empty: none is, or the controller is older."
    )
    mcp_servers: tuple[McpServerRoute, ...] = Field(
        default=(), description="Declared MCP servers, in name order, those that cannot be used now included."
    )
    refused_gateways: tuple[str, ...] = Field(
        default=(), description="A sentence for each other gateway that asks to be taken, and is refused."
    )


class LinkRefusal(Wire):
    """The message with which the controller refuses a gateway: sent in place of a routing table, before the link is
    closed. The gateway asks again later; one of an older version sees a lost link."""

    kind: Literal["refusal"] = "refusal"
    schema_version: int = SCHEMA_VERSION
    reason: str = Field(description="What is wrong, which gateway is taken, and what to do: one sentence.")


class RemoteResult(Wire):
    """Health of a remote model as one gateway finds it by probes and requests."""

    spec: str = Field(description="Value of `spec` in the `RemoteProbe` that the result belongs to.")
    at: float = Field(
        description="Unix time in seconds of the result by the gateway's clock, different for every result of a "
        "gateway."
    )
    error: str | None = Field(
        default=None, description="Why the remote model is unhealthy, without secrets; null: it is healthy."
    )
    retry_at: float | None = Field(
        default=None,
        description="Unix time in seconds of the next probe; null: the model is healthy, it refuses its key, or the "
        "gateway is of an older version that does not report it.",
    )


class PrefillTokens(Wire):
    """Number of requests of one model whose prompts engines are reading now, and how far they are, in tokens. Only
    requests whose clients asked for the progress count."""

    requests: int = 0
    processed: int = Field(default=0, description="Tokens of these prompts that are done, cached ones included.")
    total: int = Field(default=0, description="Tokens of these prompts.")

    def add_request(self, processed: int, total: int, requests: int = 1) -> PrefillTokens:
        """Return new figures with `requests` more requests, of whose `total` prompt tokens together `processed` are
        done."""
        return PrefillTokens(
            requests=self.requests + requests, processed=self.processed + processed, total=self.total + total
        )


class GatewayProcess(Wire):
    """Identity of a gateway's process: the gateway's id, the number of its start, and where the process runs."""

    id: str = Field(description="Id of the gateway, kept in its state folder.")
    epoch: int = Field(
        description="Number of this start of the gateway, greater than that of every earlier start; 0: the id is new "
        "with each start, because the state folder cannot be written or the gateway is of an older version."
    )
    pid: int | None = None
    start_ticks: int | None = Field(
        default=None, description="Start of the process in clock ticks since boot; null: not known."
    )
    host: str | None = Field(
        default=None,
        description="Boot of the machine and PID namespace in which `pid` and `start_ticks` mean something; null: not "
        "known.",
    )

    @property
    def name(self) -> str:
        """Name of the process, as in `gateway_id` of its reports: `ID.EPOCH`, or the id alone where the epoch is 0."""
        return f"{self.id}.{self.epoch}" if self.epoch else self.id


class GatewayReport(Wire):
    """The state of one gateway's requests. A gateway sends it on change, at most a few times a second, and at least
    every few seconds. Each report is complete and replaces the one before."""

    kind: Literal["report"] = "report"
    schema_version: int = SCHEMA_VERSION
    gateway_id: str = Field(description="Name of the gateway's process, new with each start.")
    process: GatewayProcess | None = Field(
        default=None, description="The gateway's process; null: the gateway is of an older version."
    )
    addresses: tuple[str, ...] = Field(
        default=(),
        description="URLs that the gateway listens on; empty: unknown, because the gateway is of an older version.",
    )
    stamp: Stamp | None = Field(
        description="Version of the routing table that the gateway uses; null: it has received none yet."
    )
    inflight: dict[str, int] = Field(
        default_factory=dict,
        description="Maps a replica's name to the number of its running requests. Replicas without requests are "
        "left out.",
    )
    queued: dict[str, int] = Field(
        default_factory=dict,
        description="Maps a model to the number of its requests that wait in the gateway for a load or a slot.",
    )
    waits_since: dict[str, float] = Field(
        default_factory=dict, description="Maps a model to the Unix time since which its oldest waiting request waits."
    )
    last_used: dict[str, float] = Field(
        default_factory=dict, description="Maps a model to the Unix time at which a request for it last began or ended."
    )
    keys_used: dict[str, float] | None = Field(
        default=None,
        description="Maps an API key's name to the Unix time of the last request that the gateway accepted with it; "
        "null: the gateway is of an older version.",
    )
    demand: dict[str, float] = Field(
        default_factory=dict,
        description="Maps an autoload model that is not loaded to the Unix time of the last request for it.",
    )
    leaving: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description="Maps a replica that the routing table no longer contains to its running requests: request id to "
        "the Unix time at which it was sent to the engine.",
    )
    ending: bool = Field(
        default=False,
        description="Whether the gateway is shutting down: it has no running requests and accepts no new ones.",
    )
    draining: bool = Field(
        default=False,
        description="Whether the gateway was told to end: it accepts no new requests, and running ones may finish.",
    )
    takes_over: bool = Field(
        default=False,
        description="Whether an older process of the same gateway is told to end as soon as this one serves: the "
        "controller then takes this one at once.",
    )
    failed: dict[str, float] = Field(
        default_factory=dict,
        description="Maps a replica to the Unix time at which it refused or broke a connection. The controller "
        "then probes it.",
    )
    prefill: dict[str, PrefillTokens] = Field(
        default_factory=dict, description="Model to the prompts that are being read; absent: none that anybody follows."
    )
    remotes: dict[str, RemoteResult] = Field(
        default_factory=dict,
        description="Maps a remote model to its last probe result. Models without a result yet are left out.",
    )
    tool_calls: tuple[ToolCallRecord, ...] = Field(
        default=(),
        description="The latest ended calls of tools, oldest first, at most 64. Every report repeats them; the "
        "controller writes those into the history that it has not written yet, by `gateway_id`, which is new with each "
        "start of a gateway, and `sequence`.",
    )
