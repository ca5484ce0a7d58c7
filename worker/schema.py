"""The requests that the worker understands: OpenAI's fields, checked; others are kept and left to the engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.errors import RequestError


class StreamOptions(BaseModel):
    """How a stream is sent."""

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What chat and completions share. A field that is null counts as left out.

    Fields that would change the answer and that no engine offers are named, so that they are refused, not overlooked.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate, or None for as many as fit."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with an event of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(GenerationRequest):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: Literal[False] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        """OpenAI's newer name wins over the older one."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationRequest):
    """`/v1/completions`. The prompt is a text, or its token ids."""

    prompt: str | list[int]
    echo: Literal[False] | None = None
    suffix: None = None
    logprobs: None = None


Text = Annotated[str, Field(min_length=1)]


class EmbeddingRequest(BaseModel):
    """`/v1/embeddings`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    input: Text | Annotated[list[Text], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None

    @property
    def texts(self) -> list[str]:
        """What to embed, in order."""
        return [self.input] if isinstance(self.input, str) else self.input


_TYPES = ("str", "int", "float", "bool", "dict", "list")

RequestT = TypeVar("RequestT", bound=BaseModel)


def parse(kind: type[RequestT], body: bytes) -> RequestT:
    """The request in a body of JSON. Raises RequestError."""
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        raise RequestError(f"The body is not JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        raise RequestError("The body is not a JSON object.", code="invalid_json")
    field = str(first["loc"][0])
    where = _path(first["loc"])
    if first["type"] == "missing":
        raise RequestError(f"`{where}` is missing.", param=field)
    # A field of several types gives an error for each: together they say what it may be.
    messages = dict.fromkeys(error["msg"] for error in errors if _path(error["loc"]) == where)
    raise RequestError(f"`{where}`: {', or: '.join(messages)}.", param=field)


def _path(location: tuple[int | str, ...]) -> str:
    # Beside names and indexes pydantic puts the alternatives of a union, such as `str` or `list[str]`.
    parts = [str(part) for part in location]
    return ".".join(part for part in parts if part.isdigit() or (part.isidentifier() and part not in _TYPES))
