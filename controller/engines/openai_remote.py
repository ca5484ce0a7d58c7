"""A model that another server offers over OpenAI's API. Roundhouse starts nothing: it probes and routes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contract.admin import Capabilities
from contract.desired import Definition, Settable
from contract.routing import MaxTokensField, SessionBinding, ThinkingControl
from controller.engines.base import Engine, Remote, apply_declared
from controller.engines.options import Hashed


class OpenAIRemoteDefinition(Definition):
    """A model of another server. At most one of `api_key_env` and `api_key_file` may be set."""

    backend: Annotated[Literal["openai_remote"], Settable.ALWAYS]
    base_url: Annotated[str, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        description="URL of the server's OpenAI API, including `/v1` if the server's paths begin with it.",
    )
    remote_model: Annotated[str | None, Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None,
        description="Name of the model at the server; default: its name in the desired-state files.",
    )
    api_key_env: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None, description="Name of the controller's environment variable that holds the server's API key."
    )
    api_key_file: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None, description="Path, as the controller sees it, of a file that holds the server's API key."
    )
    remote_apis: Annotated[list[str], Hashed.NEVER, Settable.FROM_FILES] = Field(
        default_factory=lambda: ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"],
        description="Paths of the APIs that the server offers.",
    )
    remote_fields: Annotated[list[str], Hashed.NEVER, Settable.ALWAYS] = Field(
        default_factory=list,
        description="Request fields that the gateway passes to the server besides the API's own, such as `top_k` of a"
        " chat completion. It drops all others.",
    )
    thinking_field: Annotated[ThinkingControl, Hashed.NEVER, Settable.ALWAYS] = Field(
        default="chat_template_kwargs",
        description="Field of a chat completion that switches thinking on or off, if `thinking_modes` has more than "
        "`default`.",
    )
    max_tokens_field: Annotated[MaxTokensField, Hashed.NEVER, Settable.ALWAYS] = Field(
        default="max_tokens",
        description="Field that limits the tokens of a chat completion translated from another API. OpenAI's "
        "reasoning models accept only `max_completion_tokens`.",
    )
    health_path: Annotated[str, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default="/models", description="Path below `base_url` that returns 200 if the server is healthy."
    )

    @model_validator(mode="after")
    def _one_key_and_no_engine(self) -> Self:
        if self.api_key_env and self.api_key_file:
            raise ValueError("api_key_env and api_key_file exclude each other")
        if self.replicas != 1:
            raise ValueError("replicas does not apply to a remote model")
        if self.replica_max not in (None, 1):
            raise ValueError("replica_max does not apply to a remote model")
        return self


class OpenAIRemote(Engine[OpenAIRemoteDefinition]):
    """The backend `openai_remote`: a model that another server serves over OpenAI's API. There is no engine, so
    `render_command` and `describe_probe` raise TypeError; gateways probe `base_url` + `health_path`."""

    name: ClassVar[str] = "openai_remote"
    definition = OpenAIRemoteDefinition
    runs: ClassVar[bool] = False
    default_target_inflight: ClassVar[int] = 64
    takes_dimensions: ClassVar[bool] = True
    choices_take_slots: ClassVar[bool] = False  # its slots, if any, are not known

    def describe_remote(self, definition: OpenAIRemoteDefinition) -> Remote | None:
        """Return the server's address without a trailing slash, the model's name there (empty: the public name), and
        where the API key is. Never None. The key itself is not read."""
        return Remote(
            base_url=definition.base_url.rstrip("/"),
            model=definition.remote_model or "",
            health_path=definition.health_path,
            api_key_env=definition.api_key_env,
            api_key_file=definition.api_key_file,
        )

    def list_apis(self, definition: OpenAIRemoteDefinition) -> tuple[str, ...]:
        """Return the declared request paths (`remote_apis`). They are not checked with the server."""
        return tuple(definition.remote_apis)

    def list_extra_fields(self, definition: OpenAIRemoteDefinition) -> tuple[str, ...] | None:
        """Return the declared names of further request fields (`remote_fields`), none by default. Never None."""
        return tuple(definition.remote_fields)

    def session_cache(self, definition: OpenAIRemoteDefinition) -> int:
        """Return the configured number of sessions (`configured_sessions`) for a server that is declared to take
        `session_id`, else 0."""
        return self.configured_sessions(definition) if self.session_binding(definition) else 0

    def session_binding(self, definition: OpenAIRemoteDefinition) -> SessionBinding | None:
        """Return `conversation` if `remote_fields` lists `session_id`, the field by which a request then names its
        session: the server may be LiteRT-LM's. Else None."""
        return "conversation" if "session_id" in definition.remote_fields else None

    def derive_capabilities(self, definition: OpenAIRemoteDefinition) -> Capabilities:
        """Return which requests the model takes: what the definition declares, else text, conversations, tools, JSON
        schemas, log probabilities and media by URL, with the thinking mode `default` alone. The server is not asked."""
        return apply_declared(definition, Capabilities(media_urls=True))

    def max_choices(self, definition: OpenAIRemoteDefinition) -> int | None:
        """Return None: there is no limit to `n`, the answers to one request, but that of the server."""
        return None

    def max_tokens_field(self, definition: OpenAIRemoteDefinition) -> MaxTokensField:
        """Return the request field that limits the output tokens of a chat completion, as declared
        (`max_tokens_field`)."""
        return definition.max_tokens_field

    def thinking_control(self, definition: OpenAIRemoteDefinition) -> ThinkingControl | None:
        """Return the declared request field that turns thinking on and off (`thinking_field`); None: the model's only
        thinking mode is `default`."""
        return definition.thinking_field if super().thinking_control(definition) else None
