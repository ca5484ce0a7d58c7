"""A model that another server offers over OpenAI's API. Roundhouse starts nothing: it probes and routes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from controller.engines.base import Engine, Remote
from controller.engines.capabilities import apply_declared
from controller.engines.options import Hashed
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition
from controller.schema.routing import MaxTokensField, SessionBinding, ThinkingControl


class OpenAIRemoteDefinition(Definition):
    """A model of another server."""

    backend: Literal["openai_remote"]
    base_url: Annotated[str, Hashed.ALWAYS] = Field(
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        description="Where its OpenAI API is, with `/v1` at the end where the server has it.",
    )
    remote_model: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="The model's name there; default: its name here."
    )
    api_key_env: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="Environment variable of the controller that holds the key."
    )
    api_key_file: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="File that holds the key, as the controller sees it."
    )
    remote_apis: Annotated[list[str], Hashed.NEVER] = Field(
        default_factory=lambda: ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"],
        description="Paths that the server offers.",
    )
    remote_fields: Annotated[list[str], Hashed.NEVER] = Field(
        default_factory=list,
        description="Fields of requests that it gets beside those that the API knows, such as `top_k` of a chat "
        "completion; others stay here.",
    )
    thinking_field: Annotated[ThinkingControl, Hashed.NEVER] = Field(
        default="chat_template_kwargs",
        description="Field of a chat completion that tells it to think or not, where `thinking_modes` has more than "
        "`default`.",
    )
    max_tokens_field: Annotated[MaxTokensField, Hashed.NEVER] = Field(
        default="max_tokens",
        description="What it calls the most tokens of a chat completion (requests of other APIs); OpenAI's models that "
        "reason know `max_completion_tokens` alone.",
    )
    health_path: Annotated[str, Hashed.ALWAYS] = Field(
        default="/models", description="Path below base_url that answers 200 when all is well."
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
    """Starts nothing. Gateways probe `health_path` and send requests to `base_url`."""

    name: ClassVar[str] = "openai_remote"
    definition = OpenAIRemoteDefinition
    runs: ClassVar[bool] = False
    default_target_inflight: ClassVar[int] = 64
    takes_dimensions: ClassVar[bool] = True
    choices_take_slots: ClassVar[bool] = False  # its slots, if any, are not known

    def describe_remote(self, definition: OpenAIRemoteDefinition) -> Remote | None:
        """Return the server's address, the model's name there and where the key is."""
        return Remote(
            base_url=definition.base_url.rstrip("/"),
            model=definition.remote_model or "",
            health_path=definition.health_path,
            api_key_env=definition.api_key_env,
            api_key_file=definition.api_key_file,
        )

    def list_apis(self, definition: OpenAIRemoteDefinition) -> tuple[str, ...]:
        """Return the declared paths."""
        return tuple(definition.remote_apis)

    def list_extra_fields(self, definition: OpenAIRemoteDefinition) -> tuple[str, ...] | None:
        """Return the declared request fields."""
        return tuple(definition.remote_fields)

    def session_cache(self, definition: OpenAIRemoteDefinition) -> int:
        """Return the configured number for a server that is declared to take `session_id`, else 0."""
        return self.configured_sessions(definition) if self.session_binding(definition) else 0

    def session_binding(self, definition: OpenAIRemoteDefinition) -> SessionBinding | None:
        """Return `conversation` if `remote_fields` lists `session_id`: the server may be a LiteRT-LM."""
        return "conversation" if "session_id" in definition.remote_fields else None

    def derive_capabilities(self, definition: OpenAIRemoteDefinition) -> Capabilities:
        """Return the declared capabilities; else text, conversations, tools and JSON, without thinking modes."""
        return apply_declared(definition, Capabilities())

    def max_choices(self, definition: OpenAIRemoteDefinition) -> int | None:
        """Return None: the server decides."""
        return None

    def max_tokens_field(self, definition: OpenAIRemoteDefinition) -> MaxTokensField:
        """Return the declared request field."""
        return definition.max_tokens_field

    def thinking_control(self, definition: OpenAIRemoteDefinition) -> ThinkingControl | None:
        """Return the declared request field."""
        return definition.thinking_field if super().thinking_control(definition) else None
