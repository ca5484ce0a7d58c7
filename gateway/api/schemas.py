"""What the OpenAPI document says of the inference routes: the fields that the gateway reads, and the usual others.

Requests are passed to the engine as they are, so nothing here validates: an engine's own fields pass too.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    """OpenAI's stream options."""

    include_usage: bool | None = Field(None, description="End the stream with an event that holds the token counts.")


class _Inference(_Open):
    model: str = Field(description="Name or alias of a declared model; GET /v1/models lists them.")


class _Generation(_Inference):
    stream: bool | None = Field(None, description="Answer with server-sent events that end with `data: [DONE]`.")
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, description="Most tokens of the answer; those of the prompt do not count.")
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None


class ChatMessage(_Open):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatCompletionRequest(_Generation):
    """OpenAI's chat completion request. Fields that are not listed reach the engine too."""

    messages: list[ChatMessage]
    thinking: str | bool | dict[str, Any] | None = Field(
        None,
        description="`default`, `enabled` or `disabled`, where the model's capabilities have it; anything but a text "
        "is the engine's own field.",
        examples=["default"],
    )
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(_Generation):
    """OpenAI's completion request. Fields that are not listed reach the engine too."""

    prompt: str | list[Any]


class EmbeddingRequest(_Inference):
    """OpenAI's embedding request. Fields that are not listed reach the engine too."""

    input: str | list[Any]
    encoding_format: str | None = None


class TokenUsage(_Open):
    """Tokens as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int


class ChatChoice(_Open):
    """One of the answers."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None


class ChatCompletion(_Open):
    """OpenAI's chat completion. `model` is what the engine calls itself."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage | None = None


class CompletionChoice(_Open):
    """One of the answers."""

    index: int
    text: str
    finish_reason: str | None = None


class Completion(_Open):
    """OpenAI's completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage | None = None


class Embedding(_Open):
    """One vector."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingList(_Open):
    """OpenAI's embeddings."""

    object: str
    data: list[Embedding]
    model: str
    usage: TokenUsage | None = None


class ResponsesRequest(_Inference):
    """OpenAI's responses request. Fields that are not listed reach the engine too."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None


class MessagesRequest(_Inference):
    """Anthropic's messages request. Fields that are not listed reach the engine too."""

    messages: list[ChatMessage]
    system: str | list[Any] | None = None
    max_tokens: int | None = None
    stream: bool | None = None


class RerankRequest(_Inference):
    """Jina's rerank request. Fields that are not listed reach the engine too."""

    query: str
    documents: list[Any]
    top_n: int | None = None


class Anything(_Open):
    """A JSON object in the engine's own form."""
