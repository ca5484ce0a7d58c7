"""Bodies of the inference routes in the OpenAPI document: the fields that the gateway reads, and other common ones.

These models validate nothing: requests reach the engine as they are, with fields of the engine's own.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_SESSION = Field(
    None, description="Requests with the same one are a session: the next one goes where its cache is (`X-Session`)."
)


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    """OpenAI's stream options of a request with `stream: true`."""

    include_usage: bool | None = Field(
        None, description="Whether the stream ends with an event that holds the token counts."
    )


class _Inference(_Open):
    model: str = Field(description="Name or alias of a declared model; GET /v1/models lists them.")


class _Generation(_Inference):
    stream: bool | None = Field(
        None, description="Whether the answer is a stream of server-sent events that ends with `data: [DONE]`."
    )
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, description="Maximum tokens of the answer, not counting the prompt.")
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    session_id: str | None = _SESSION


class ChatMessage(_Open):
    """One message of a chat: of a request, or the answer. `content` is a text or a list of parts; null: it has none, as
    beside `tool_calls`."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = Field(
        None,
        description="The model's reasoning in an earlier answer. Engines get it as `reasoning_content` and as "
        "`reasoning`.",
    )
    reasoning: str | None = Field(None, description="Another name of `reasoning_content`.")
    tool_calls: list[dict[str, Any]] | None = None


class ChatCompletionRequest(_Generation):
    """OpenAI's chat completion request, described for clients; no request is validated by this schema. Fields that are
    not listed reach the engine too."""

    messages: list[ChatMessage]
    thinking: str | bool | dict[str, Any] | None = Field(
        None,
        description="Whether the model thinks: `default`, `enabled` or `disabled`, if the model's "
        "`capabilities.thinking_modes` has the value. A value that is no string reaches the engine unchanged.",
        examples=["default"],
    )
    reasoning_effort: str | None = Field(
        None,
        description="`none` means `thinking: disabled` if the model supports it. All other values reach the "
        "engine unchanged.",
    )
    max_completion_tokens: int | None = Field(None, description="The newer name of `max_tokens`.")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    rag: bool | dict[str, Any] | None = Field(
        None,
        description="Ground the answer in the tenant's documents: `true`, or an object with `query`, `filter`, "
        "`top_k`, `mode`, `score_threshold`, `rerank`, `max_tokens` (docs/retrieval.md). The answer has "
        "`sources` (and `sources_notice`), and its message `annotations` for each citation.",
    )
    store: bool | None = Field(
        None, description="Whether the gateway stores the completion, under an id that the gateway makes."
    )
    metadata: dict[str, str] | None = Field(
        None, description="Names and values by which a stored completion can be found."
    )
    service_tier: str | None = Field(
        None,
        description="`priority`, `default` or `flex`: order of the request among the waiting requests of the "
        "key's tenant.",
    )
    prompt_cache_key: str | None = Field(
        None,
        description="Requests with the same value belong to one session, and go to the same replica if its load "
        "allows it.",
    )


class CompletionRequest(_Generation):
    """OpenAI's completion request, described for clients; no request is validated by this schema. Fields that are not
    listed reach the engine too."""

    prompt: str | list[Any]


class EmbeddingRequest(_Inference):
    """OpenAI's embedding request, described for clients; no request is validated by this schema. Fields that are not
    listed reach the engine too."""

    input: str | list[Any] = Field(description="A text, a list of tokens, or an array of either.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="`base64`: little-endian float32 values. Default: the engine's, nearly always `float`."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Length of the embeddings, if the model's may be truncated (`matryoshka`)."
    )


class TokenUsage(_Open):
    """Tokens as the engine counted them. `completion_tokens` is null or missing for answers without generated text,
    such as embeddings."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int
    prompt_tokens_details: dict[str, Any] | None = Field(
        None, description="`cached_tokens`: how many of the prompt came from the engine's cache, where it tells."
    )


class ChatChoice(_Open):
    """One of the answers of a chat completion."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None


class ChatCompletion(_Open):
    """OpenAI's chat completion, not streamed. `model` is what the engine calls itself; `created` is Unix time in
    seconds."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage | None = None


class CompletionChoice(_Open):
    """One of the answers of a completion."""

    index: int
    text: str
    finish_reason: str | None = None


class Completion(_Open):
    """OpenAI's completion, not streamed. `created` is Unix time in seconds."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage | None = None


class Embedding(_Open):
    """The vector of one input. `embedding` is a list of numbers or, where `base64` was asked for, the base64 text of
    little-endian float32 values; `index` is the input's place in the request, from 0."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingList(_Open):
    """OpenAI's list of embeddings: `data` has one for each input."""

    object: str
    data: list[Embedding]
    model: str
    usage: TokenUsage | None = None


class ResponsesRequest(_Inference):
    """OpenAI's responses request, described for clients; no request is validated by this schema. Fields that are not
    listed reach the engine too."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    conversation: str | dict[str, Any] | None = Field(
        None,
        description="Id of the conversation that the response continues, or an object with its `id` and, as an "
        "extension of OpenAI's API, the `parent_id` of the item that the response follows (null: it begins a branch); "
        "without `parent_id`, it follows the active item (docs/conversations.md).",
    )
    tools: list[dict[str, Any]] | None = Field(
        None,
        description="Functions and custom tools that the client runs; `file_search`, which the gateway runs before it "
        "asks the model (docs/retrieval.md); and `mcp`, a declared server whose tools the gateway runs when the model "
        "calls them (docs/responses.md).",
    )
    session_id: str | None = _SESSION


class MessagesTokensRequest(_Inference):
    """Anthropic's token counting request, described for clients; no request is validated by this schema. Other fields
    of a messages request are accepted."""

    messages: list[ChatMessage] = Field(min_length=1)
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = Field(
        None, description="Tools that the client runs, each with `name` and `input_schema`."
    )
    tool_choice: dict[str, Any] | None = None
    thinking: str | dict[str, Any] | None = Field(
        None,
        description="Anthropic's object, which is ignored if the model's thinking cannot be switched; or `default`, "
        "`enabled` or `disabled`, if the model's `capabilities.thinking_modes` has the value.",
    )
    output_config: dict[str, Any] | None = Field(
        None, description="Object with `format` (a JSON Schema of the answer) and `effort`."
    )


class MessagesRequest(MessagesTokensRequest):
    """Anthropic's messages request, described for clients; no request is validated by this schema. Fields that no API
    knows reach the engine too."""

    max_tokens: int = Field(ge=0, description="Maximum tokens of the answer, including reasoning.")
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    rag: bool | dict[str, Any] | None = Field(
        None,
        description="Ground the answer in the tenant's documents, as `rag` of a chat completion. The message has "
        "`sources`, and its text blocks `citations`.",
    )
    session_id: str | None = _SESSION


class MessageUsage(_Open):
    """Tokens as the engine counted them. `input_tokens` leaves out tokens that came from a cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None


class AnthropicMessage(_Open):
    """Anthropic's message: the answer to a messages request, not streamed."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]] = Field(description="Content blocks of the types `thinking`, `text` and `tool_use`.")
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(_Open):
    """Number of tokens of a request's messages."""

    input_tokens: int


class _Reranking(_Inference):
    query: str = Field(min_length=1)
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; default: all documents.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Passed to the engine; ignored by engines that do not support it."
    )


class CohereRerankRequest(_Reranking):
    """Cohere's v2 rerank request, described for clients; no request is validated by this schema. Fields that are not
    listed reach the engine too."""

    documents: list[str] = Field(min_length=1)


class RerankRequest(_Reranking):
    """Jina's rerank request, and Cohere's v1, described for clients; no request is validated by this schema. Fields
    that are not listed reach the engine too."""

    documents: list[str | dict[str, Any]] = Field(min_length=1)
    return_documents: bool | None = Field(None, description="Whether each result holds its document.")
    rank_fields: list[str] | None = Field(
        None,
        min_length=1,
        description="Fields, in this order, that are compared with the query if documents are objects; default: "
        "`text`.",
    )
    max_chunks_per_doc: int | None = Field(
        None, ge=1, description="Passed to the engine; ignored by engines that do not support it."
    )


class RankedDocument(_Open):
    """A document of the request and its score, on the engine's own scale. `document` is null or missing unless
    `return_documents` asked for it."""

    index: int = Field(description="Index of the document in the request's `documents`, from 0.")
    relevance_score: float
    document: dict[str, Any] | None = Field(
        None, description='The document as the client sent it; a string becomes `{"text": ...}`.'
    )


class CohereRanking(_Open):
    """Cohere's ranking: the answer to a rerank request in the form of Cohere's v2."""

    id: str
    results: list[RankedDocument] = Field(description="Results, highest score first.")
    meta: dict[str, Any]


class Ranking(CohereRanking):
    """Answer to a rerank request with the fields of both Jina's form and Cohere's v1."""

    object: str
    model: str
    usage: TokenUsage | None = None


class Compaction(_Open):
    """A compacted conversation. Its `output` is the `input` of the next request."""

    id: str
    object: Literal["response.compaction"]
    created_at: int = Field(description="Unix time in seconds.")
    output: list[dict[str, Any]] = Field(
        description="Items of the compacted conversation; the last item has the type `compaction`."
    )
    usage: dict[str, Any]


class InputTokens(_Open):
    """Number of tokens of a request's input."""

    object: str
    input_tokens: int


class Anything(_Open):
    """JSON in a form that is not described here, nearly always the engine's own: an object, though some routes
    (`/slots`, `/lora-adapters`, `/embedding`) have a list in its place."""
