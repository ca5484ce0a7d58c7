"""Checks a request against the model: thinking, tools, structured output, modalities, turns, addresses of media, and
the length of the prompt. Pure.

Every request passes through here, so for text this costs one look at each message. A field of unexpected shape passes;
the engine refuses it.

Engines fetch addresses that a request names: llama-server and vLLM follow any `http:` address from where they run, also
one of the host's own network that the client cannot reach. So the gateway refuses addresses of a model that does not
declare `media_urls`, and lets data pass: a `data:` URL, or base64 alone.

The count of a prompt's tokens is a lower bound, never an estimate: the engine would refuse whatever is refused here. It
covers user messages alone, because templates drop thoughts and may ignore tools and system messages. It measures bytes
of text without white space, because templates trim messages and special tokens absorb white space. One token of the
model's vocabulary stands for at most `ModelRoute.longest_token` of these bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from contract.admin import Capabilities, Modality, ThinkingMode
from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common.bodies import CONSTRAINT_FIELDS
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Image,
    Prompt,
    System,
    Text,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.errors import OVERFLOW_CODE, ContextOverflow
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import InferenceRequest

_MEDIA_FIELDS: Final = (
    *("image_url", "input_image", "image", "input_audio", "audio_url", "audio", "input_video", "video_url", "video"),
    "source",
)
"""Fields of content parts that hold media: the data or address itself, or an object with it (`_INNER_FIELDS`)."""
_INNER_FIELDS: Final = ("url", "data")
_WITHOUT_MEDIA: Final = frozenset({"text", "tool_use", "search_result", "thinking", "redacted_thinking"})
_DATA: Final = re.compile(r"data:.*|(?!http)[a-z0-9+/=_\-]*", re.IGNORECASE | re.DOTALL)
_LOOKED_AT: Final = 64
"""Characters at the beginning that tell an address from base64. Python's parser of addresses, which vLLM uses, drops
white space before and inside an address; base64 has none in its first line, which is not shorter than this."""
_LEFT_OUT: Final = "\x01"
"""Where a large body's outline lacks the rest of a text. It has the first 6 characters, unless the client escaped one
of them, which nobody does in base64."""
_CERTAIN: Final = 6


def check_media_urls(messages: list[Any], model: str) -> None:
    """Refuse media that are given by an address (`invalid_request`), in messages of any API family that are passed
    through. A message or part of an unexpected shape is not refused."""
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and (place := _find_address(content)) is not None:
            raise _refusal(f"messages[{number}].content{place}", model)


def check_prompt_media_urls(prompt: Prompt, model: str) -> None:
    """Refuse media that are given by an address (`invalid_request`), in a request that is to be translated."""
    for turn in prompt.turns:
        for part in turn.parts if isinstance(turn, User | ToolResult) else ():
            value = part.url if isinstance(part, Image) else part.data if isinstance(part, Audio) else ""
            if isinstance(part, Image | Audio) and not _is_data(value):
                raise _refusal(part.place or turn.place, model)


def list_inner_parts(part: Mapping[str, Any]) -> tuple[list[Any], str] | None:
    """Return the list of parts inside an Anthropic tool result or document, and the path from `part` to that list, such
    as `.content`; None if `part` is of another type or holds no list."""
    content, place = part.get("content"), ".content"
    if part.get("type") == "document":
        source = part.get("source")
        content, place = source.get("content") if isinstance(source, dict) else None, ".source.content"
    elif part.get("type") != "tool_result":
        return None
    return (content, place) if isinstance(content, list) else None


def _find_address(parts: list[Any]) -> str | None:
    """Return the place of the first part that holds an address; None: none does."""
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") in _WITHOUT_MEDIA:
            continue
        if not all(_is_data(value) for value in _list_values(part)):
            return f"[{number}]"
        if (inner := list_inner_parts(part)) is not None and (place := _find_address(inner[0])) is not None:
            return f"[{number}]{inner[1]}{place}"
    return None


def _list_values(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a part that are data or addresses of media."""
    for name in _MEDIA_FIELDS:
        value = part.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict) and value.get("type") not in ("text", "content"):
            yield from (inner for field in _INNER_FIELDS if isinstance(inner := value.get(field), str))


def _is_data(value: str) -> bool:
    beginning = value[:_LOOKED_AT]
    end = beginning.find(_LEFT_OUT)
    return _DATA.fullmatch(beginning[:end] if end >= _CERTAIN else beginning) is not None


def _refusal(place: str, model: str) -> RoundhouseError:
    message = f"The model {model!r} fetches no addresses: send the data itself, as base64 or as a `data:` URL."
    return RoundhouseError("invalid_request", message, param=place)


_BLOCK: Final = 65_536
"""Characters measured in one step."""
_LONGEST_CHARACTER: Final = 4
"""Maximum bytes of a character in UTF-8."""
_SPACE_MARK: Final = "\u2581"
"""SentencePiece's mark for a space. Its vocabularies cannot tell the two apart."""
_CUTTING: Final = ("truncate_prompt_tokens", "chat_template", "prompt_embeds")
"""Fields by which vLLM truncates a prompt, renders it by another template, or takes embeddings in place of text."""
_PLACES: Final = ("messages", "input", "prompt")


def check_length(request: InferenceRequest, route: ModelRoute) -> None:
    """Refuse a request if a prompt in it certainly has more tokens than the model's context.

    Checks nothing if `route.context_length` or `route.longest_token` is not known, or if the request asks the engine to
    truncate the prompt, replaces the chat template, or gives embeddings as the prompt. Of a conversation, only the
    user's texts are counted, so a request that passes may still be too long for the engine.

    Raises:
        RoundhouseError: `context_length_exceeded`; `param` is the field that holds the prompt, such as `messages`. Or
            `invalid_json`: a long string of a large body is not valid JSON.
    """
    limit, longest_token, fields = route.context_length, route.longest_token, request.outline_fields
    if limit is None or not longest_token or request.size <= limit:
        return
    if fields.get("truncation") == "auto" or any(fields.get(name) for name in _CUTTING):
        return
    for texts in _list_sequences(request):
        tokens = texts if isinstance(texts, int) else _count_least_tokens(texts, longest_token, limit, request)
        if tokens > limit:
            overflow = ContextOverflow(limit=limit, prompt_tokens=tokens, is_at_least=True)
            place = next((name for name in _PLACES if name in fields), None)
            raise RoundhouseError(OVERFLOW_CODE, overflow.describe_for_openai(), param=place)


def _list_sequences(request: InferenceRequest) -> Iterator[list[str] | int]:
    """Yield, for each token sequence that the engine will make of the request, its texts or the number of its
    tokens."""
    if request.prompt is not None:
        yield _texts_of_prompt(request.prompt)
        return
    fields = request.outline_fields
    messages = fields.get("messages")
    if isinstance(messages, list):
        yield [text for message in messages for text in _texts_of_message(message)]
        return
    given = fields.get("prompt", fields.get("input"))
    yield from _list_given(given, is_inner=False)


def _list_given(given: Any, *, is_inner: bool) -> Iterator[list[str] | int]:
    """Yield the text, or the number of tokens, of each sequence in `given`: a prompt, or an input to embed. It is a
    text, tokens, or a list of these."""
    if isinstance(given, str):
        yield [given]
    elif isinstance(given, list):
        if given and all(type(each) is int for each in given):
            yield len(given)
        elif not is_inner:
            for each in given:
                yield from _list_given(each, is_inner=True)


def _texts_of_prompt(prompt: Prompt) -> list[str]:
    users = (turn for turn in prompt.turns if isinstance(turn, User))
    return [part.text for turn in users for part in turn.parts if isinstance(part, Text)]


def _texts_of_message(message: Any) -> list[str]:
    """Return the texts of a user message, in the form of chat completions or of Anthropic's messages; none for other
    roles."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return []
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return [text for text in texts if isinstance(text, str)]


def _count_least_tokens(texts: list[str], longest_token: int, limit: int, request: InferenceRequest) -> int:
    """Return how many tokens these texts of the request have at least. Counting stops soon after the result exceeds
    `limit`."""
    enough = limit * longest_token
    # JSON needs at least as many bytes for a character as UTF-8.
    if request.size <= enough or (request.large_body is None and _LONGEST_CHARACTER * sum(map(len, texts)) <= enough):
        return 0
    size = 0
    for block in _list_blocks(texts, request.large_body):
        size += _measure_block(block)
        if size > enough:
            break
    return -(-size // longest_token)


def _list_blocks(texts: list[str], large_body: LargeBody | None) -> Iterator[str]:
    """Yield the texts in pieces that take little time each."""
    for text in texts:
        for piece in (text,) if large_body is None else large_body.split_text(text):
            yield from (piece[start : start + _BLOCK] for start in range(0, len(piece), _BLOCK))


def _measure_block(text: str) -> int:
    """Return the bytes of a text without white space. Half of a surrogate pair counts nothing, because no engine gets
    it."""
    return len("".join(text.split()).replace(_SPACE_MARK, "").encode(errors="ignore"))


MODALITY_OF_PART: Final[dict[str, Modality]] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
}
"""Type of a content part to the modality that it holds. Types that are missing here pass, as `text` does."""

FORMATS: Final = ("response_format", "output_format")
"""Fields that hold the answer's format: OpenAI's, and Anthropic's first name for it."""
HOLDS_FORMAT: Final = ("text", "output_config")
"""Fields whose `format` holds the answer's format: of responses, and of messages."""

_FORMS: Final = frozenset({*FORMATS, *HOLDS_FORMAT, *CONSTRAINT_FIELDS})
_MODES: Final = get_args(ThinkingMode)
_ALL_MODALITIES: Final = frozenset(get_args(Modality))
_TEXT_ALONE: Final[tuple[Modality, ...]] = ("text",)
_ASKING: Final = frozenset({"user", "tool", "function"})
"""Roles whose messages ask for an answer."""


def check_capabilities(fields: dict[str, Any], capabilities: Capabilities, model: str) -> None:
    """Refuse a decoded request that asks for what `model` does not support, for requests that are passed through. Looks
    at the fields of all API families, whichever API was asked. A field of an unexpected shape is not refused.

    Raises:
        RoundhouseError: `invalid_request` (a string in `thinking` that is no known mode; media given by an address,
            which the model does not fetch), `thinking_unsupported`, `tools_unsupported`,
            `structured_output_unsupported`, `logprobs_unsupported`, `modality_unsupported` or
            `multi_turn_unsupported`; its `param` is the field, or the path to the value (`messages[1].content[0]`).
    """
    if "thinking" in fields:
        _check_thinking(fields["thinking"], capabilities, model)
    if not capabilities.tools:
        _check_tools(fields, model)
    elif not capabilities.forced_tools:
        _check_forced_tools(fields, model)
    if not (capabilities.structured_output or _FORMS.isdisjoint(fields)):
        _check_form(fields, model)
    if not capabilities.logprobs and (name := _find_logprobs(fields)) is not None:
        raise _no_logprobs(name, model)
    messages = fields.get("messages")
    if isinstance(messages, list):
        if not _ALL_MODALITIES.issubset(capabilities.modalities):
            _check_parts(messages, capabilities, model)
        if _checks_media_urls(capabilities):
            check_media_urls(messages, model)
        if not capabilities.multi_turn:
            _check_turns(messages, model)


def check_prompt(prompt: Prompt, capabilities: Capabilities, model: str) -> None:
    """Refuse a request that is to be translated and asks for what `model` does not support. Raises RoundhouseError as
    `check_capabilities`; its `param` is a field's name, such as `tools`, or for turns, parts and the output format the
    path in the client's own request, such as `input[1].content[0]`."""
    if prompt.thinking is not None and prompt.thinking not in capabilities.thinking_modes:
        raise _no_thinking(prompt.thinking, capabilities, model)
    if prompt.tools:
        _check_choice(prompt.tool_choice, capabilities, model)
    if not capabilities.structured_output:
        if prompt.output_format is not None:
            raise _no_form(prompt.output_format.place, model)
        _check_form(prompt.passed_fields, model)
    if not capabilities.logprobs and _find_logprobs(prompt.passed_fields) is not None:
        # Requests for responses ask for log probabilities by either field.
        raise _no_logprobs("top_logprobs" if prompt.passed_fields.get("top_logprobs") else "include", model)
    if not _ALL_MODALITIES.issubset(capabilities.modalities):
        for turn in prompt.turns:
            _check_turn(turn, capabilities, model)
    if _checks_media_urls(capabilities):
        check_prompt_media_urls(prompt, model)
    if not capabilities.multi_turn:
        _check_turns_of(prompt.turns, model)


# Checks of requests that are passed through.


def _check_thinking(thinking: Any, capabilities: Capabilities, model: str) -> None:
    if not isinstance(thinking, str):
        return  # the engine's own field of this name
    if thinking not in _MODES:
        rule = f"`thinking` must be one of {', '.join(_MODES)}; it is {thinking!r:.60}."
        raise RoundhouseError("invalid_request", rule, param="thinking")
    if thinking != "default" and thinking not in capabilities.thinking_modes:
        raise _no_thinking(thinking, capabilities, model)


def _check_tools(fields: dict[str, Any], model: str) -> None:
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if fields.get(name) and fields.get(choice) not in ("none", {"type": "none"}):
            raise _no_tools(name, model)


def _check_forced_tools(fields: dict[str, Any], model: str) -> None:
    for tools, name in (("tools", "tool_choice"), ("functions", "function_call")):
        choice = fields.get(name) if fields.get(tools) else None
        if isinstance(choice, dict):
            allowed = choice.get("allowed_tools")
            holder = allowed if isinstance(allowed, dict) else choice
            is_free = choice.get("type") in ("auto", "none") or holder.get("mode") == "auto"
        else:
            is_free = choice in (None, "auto", "none")
        if not is_free:
            raise _no_forced_tools(name, model)


def _check_form(fields: Mapping[str, Any], model: str) -> None:
    for name in FORMATS:
        if _is_form(fields.get(name)):
            raise _no_form(name, model)
    for name in HOLDS_FORMAT:
        holder = fields.get(name)
        if isinstance(holder, dict) and _is_form(holder.get("format")):
            raise _no_form(f"{name}.format", model)
    for name in CONSTRAINT_FIELDS:
        if fields.get(name) not in (None, "", False):
            raise _no_form(name, model)


def _find_logprobs(fields: Mapping[str, Any]) -> str | None:
    """Return the field that asks for log probabilities, or None. A completion's `logprobs` is a number, and 0 asks for
    them too."""
    wanted = fields.get("logprobs")
    if wanted is not None and wanted is not False:
        return "logprobs"
    return next((name for name in ("top_logprobs", "prompt_logprobs") if fields.get(name)), None)


def _is_form(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") not in (None, "text")


def _checks_media_urls(capabilities: Capabilities) -> bool:
    """Whether the engine might fetch what a request names, and must not: one that takes nothing but text never does."""
    return not capabilities.media_urls and capabilities.modalities != _TEXT_ALONE


def _check_parts(messages: list[Any], capabilities: Capabilities, model: str) -> None:
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if (
            isinstance(content, list)
            and (refused_part := _find_refused_part(content, capabilities.modalities)) is not None
        ):
            modality, place = refused_part
            raise _no_modality(modality, f"messages[{number}].content{place}", capabilities, model)


def _find_refused_part(parts: list[Any], modalities: Sequence[Modality]) -> tuple[Modality, str] | None:
    """Return modality and place of the first part that holds an unsupported modality, or None."""
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") == "text":
            continue
        modality = modality_of(part)
        if modality is not None:
            if modality not in modalities:
                return modality, f"[{number}]"
        elif (inner := list_inner_parts(part)) is not None and (
            refused_part := _find_refused_part(inner[0], modalities)
        ) is not None:
            return refused_part[0], f"[{number}]{inner[1]}{refused_part[1]}"
    return None


def modality_of(part: dict[str, Any]) -> Modality | None:
    """Return the modality that a content part of any API family holds; None: text, or a type that is not known."""
    kind = part.get("type")
    if isinstance(kind, str):
        return "image" if kind == "document" and _has_pages(part.get("source")) else MODALITY_OF_PART.get(kind)
    # vLLM takes parts without a `type`; the name of their field tells it.
    return next((MODALITY_OF_PART[name] for name in part if name in MODALITY_OF_PART), None)


def _has_pages(source: Any) -> bool:
    """Whether the source of an Anthropic document is a PDF, whose pages are images to a model. Other sources are text
    or parts."""
    return isinstance(source, dict) and source.get("type") in ("base64", "url")


def _check_turns(messages: list[Any], model: str) -> None:
    """Refuse a conversation: a second message that asks for an answer, or one after an assistant message.

    An assistant message at the end is allowed: it is the start of the answer.
    """
    has_begun = False
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        role = role if isinstance(role, str) else None
        if role in _ASKING and has_begun:
            raise _one_turn(f"messages[{number}]", model)
        has_begun = has_begun or role in _ASKING or role == "assistant"


# Checks of requests that are translated.


def _check_choice(choice: ToolChoice | None, capabilities: Capabilities, model: str) -> None:
    kind = "auto" if choice is None else choice.kind
    if kind != "none" and not capabilities.tools:
        raise _no_tools("tools", model)
    if kind in ("required", "named") and not capabilities.forced_tools:
        raise _no_forced_tools("tool_choice", model)


def _check_turn(turn: Turn, capabilities: Capabilities, model: str) -> None:
    for part in turn.parts if isinstance(turn, User | ToolResult) else ():
        modality: Modality | None = "image" if isinstance(part, Image) else "audio" if isinstance(part, Audio) else None
        if modality is not None and modality not in capabilities.modalities:
            place = part.place if isinstance(part, Image | Audio) else ""
            raise _no_modality(modality, place or turn.place, capabilities, model)


def _check_turns_of(turns: tuple[Turn, ...], model: str) -> None:
    has_begun = False
    for turn in turns:
        if has_begun and not isinstance(turn, System | Assistant):
            raise _one_turn(turn.place, model)
        has_begun = has_begun or not isinstance(turn, System)


# Errors.


def _no_thinking(thinking: str, capabilities: Capabilities, model: str) -> RoundhouseError:
    accepted_modes = ", ".join(capabilities.thinking_modes)
    message = f"The model {model!r} does not take `thinking: {thinking}`; it takes {accepted_modes}."
    return RoundhouseError("thinking_unsupported", message, param="thinking")


def _no_tools(param: str, model: str) -> RoundhouseError:
    return RoundhouseError("tools_unsupported", f"The model {model!r} calls no tools.", param=param)


def _no_forced_tools(param: str, model: str) -> RoundhouseError:
    message = f"The model {model!r} cannot be made to call a tool: leave `{param}` at `auto`."
    return RoundhouseError("tools_unsupported", message, param=param)


def _no_form(param: str, model: str) -> RoundhouseError:
    message = f"The answers of the model {model!r} cannot be held to JSON, a schema or a grammar."
    return RoundhouseError("structured_output_unsupported", message, param=param)


def _no_logprobs(param: str, model: str) -> RoundhouseError:
    message = f"The engine of the model {model!r} does not tell the probabilities of tokens."
    return RoundhouseError("logprobs_unsupported", message, param=param)


def _no_modality(modality: Modality, param: str, capabilities: Capabilities, model: str) -> RoundhouseError:
    accepted_modalities = ", ".join(capabilities.modalities)
    message = f"The model {model!r} takes no {modality}; it takes {accepted_modalities}."
    return RoundhouseError("modality_unsupported", message, param=param)


def _one_turn(param: str, model: str) -> RoundhouseError:
    return RoundhouseError("multi_turn_unsupported", f"The model {model!r} takes one turn only.", param=param)
