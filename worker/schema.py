"""The requests that the worker understands. OpenAI's fields are checked; others are kept for the engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.errors import RequestError

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[int], Field(min_length=1)]


class StreamOptions(BaseModel):
    """OpenAI's options of a stream. `include_usage`: the stream ends with an event of token counts."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's option, effective with `include_usage`: every event holds the token counts so far."""


class GenerationRequest(BaseModel):
    """Fields that chat and completions share. A field that is null counts as missing.

    Fields that would change the answer and that no engine supports are declared, so that they are refused, not ignored.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    mirostat_mode: Literal[0, 1, 2] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], float] | None = None
    seed: int | None = None
    stop: Text | list[Text] | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: None = None
    guided_regex: None = None
    guided_choice: None = None
    guided_grammar: None = None
    guided_json_object: Literal[False] | None = None
    structured_outputs: None = None
    prompt_logprobs: None = None
    session_id: str | None = None
    """The session that the request belongs to; None or empty: none."""

    @property
    def stops(self) -> list[str]:
        """Strings that end the answer; empty if there are none."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def token_limit(self) -> int | None:
        """Maximum tokens to generate, at least 1; None: as many as fit the context."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with an event of token counts, as `stream_options` asks. False by default."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def include_running_usage(self) -> bool:
        """Whether every event of a stream holds the token counts so far: only if `stream_options` asks for both
        `continuous_usage_stats` and `include_usage`."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats


class Message(BaseModel):
    """One message of a conversation, with all fields that the client sent (such as `tool_calls`). `content` is a text,
    or a list of OpenAI's content parts; None: there is none."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class Function(BaseModel):
    """A function that the model may call, with all fields that the client sent. `parameters` is the JSON Schema of its
    arguments; None: it takes none."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Text
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that a request offers to the model. Functions are the only kind."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    """A function by its name, in a tool choice."""

    name: Text


class NamedTool(BaseModel):
    """A tool choice that names the function to call."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(GenerationRequest):
    """A request to `/v1/chat/completions`: a conversation of at least one message, tools that the model may call, and
    the fields of every generation. Each message is checked for role and content only."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    modalities: list[Literal["text"]] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: None = None
    function_call: None = None
    thinking: Literal["default", "enabled", "disabled"] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    source_lang_code: str | None = None
    target_lang_code: str | None = None

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call, with the fields that the client sent; empty if there are none or
        `tool_choice` is `none`."""
        return [] if self.tool_choice == "none" else [tool.model_dump(exclude_unset=True) for tool in self.tools or []]

    @property
    def token_limit(self) -> int | None:
        """Maximum tokens to generate; None: as many as fit the context. If both `max_completion_tokens` and
        `max_tokens` are set, the first counts."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationRequest):
    """A request to `/v1/completions`. The prompt is a text, alone or in a list, or its token ids."""

    prompt: str | list[int] | list[str]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
    logprobs: None = None

    @property
    def text_or_tokens(self) -> str | list[int]:
        """The prompt as a text, or as its token ids, which may be empty. Raises RequestError if the prompt is a list of
        several texts."""
        if isinstance(self.prompt, str):
            return self.prompt
        texts = [each for each in self.prompt if isinstance(each, str)]
        if len(texts) > 1:
            raise RequestError("`prompt` must be one: ask for one text after the other.", param="prompt")
        return texts[0] if texts else [each for each in self.prompt if isinstance(each, int)]


class EmbeddingRequest(BaseModel):
    """A request to `/v1/embeddings`. `input` is a text, a list of texts, the token ids of a text, or a list of such
    lists. `dimensions` is read, and refused by the route."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    input: Text | Annotated[list[Text], Field(min_length=1)] | Tokens | Annotated[list[Tokens], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs to embed, in order, at least one: texts, or the tokens of texts."""
        if isinstance(self.input, str):
            return [self.input]
        tokens = [each for each in self.input if isinstance(each, int)]
        return [tokens] if tokens else [each for each in self.input if not isinstance(each, int)]


class TokenizeRequest(BaseModel):
    """A request to `/tokenize`, in llama-server's form: a text, or texts and token ids in a list. The flags are those
    of `Engine.tokenize`; `with_pieces`: the answer has each token's text, too."""

    content: str | list[str | int]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(BaseModel):
    """A request to `/detokenize`, in llama-server's form: token ids, perhaps none."""

    tokens: list[int]


_TYPES = ("str", "int", "float", "bool", "dict", "list", "Tool", "NamedTool")

RequestT = TypeVar("RequestT", bound=BaseModel)


def parse_request(kind: type[RequestT], body: bytes) -> RequestT:
    """Return the request in a JSON body, of the type `kind`. Types are checked strictly: `"1"` is no number.

    Raises RequestError: `invalid_json` if the body is not a JSON object, else `invalid_request` with the first wrong or
    missing field as `param`.
    """
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        raise RequestError(f"The body is not JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        raise RequestError("The body is not a JSON object.", code="invalid_json")
    # A field of several types has an error for each. Report those of the types that matched deepest into the value.
    field_errors = [error for error in errors if error["loc"] and error["loc"][0] == first["loc"][0]]
    main_error = max(field_errors, key=lambda error: len(_parts(error["loc"])))
    place = _place(main_error["loc"])
    if main_error["type"] == "missing":
        raise RequestError(f"`{place}` is missing.", param=place)
    messages = dict.fromkeys(error["msg"] for error in field_errors if _place(error["loc"]) == place)
    raise RequestError(f"`{place}`: {', or: '.join(messages)}.", param=place)


def _parts(location: tuple[int | str, ...]) -> list[int | str]:
    # Beside names and indexes, pydantic's locations hold the alternatives of a union, such as `str` or `list[str]`.
    return [part for part in location if isinstance(part, int) or (part.isidentifier() and part not in _TYPES)]


def _place(location: tuple[int | str, ...]) -> str:
    path_parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in _parts(location))
    return "".join(path_parts).removeprefix(".")
