"""TranslateGemma's own form of a request: one user message with one part, which names both languages. Pure.

Its chat template (google/translategemma-*-it) takes nothing else: no system message, no list of several parts.
"""

from __future__ import annotations

from typing import Any, Final

from worker.errors import RequestError
from worker.schema import ChatRequest

SOURCE: Final = "source_lang_code"
TARGET: Final = "target_lang_code"
MIXED: Final = frozenset({"auto", "mixed"})
"""Source languages that let the model detect the language."""
DETECT: Final = (
    "The text may be in several languages: detect the source language of each segment, and translate all of them.\n\n"
)
"""Text before a text whose language the model must detect."""


def structure_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages for TranslateGemma's template: one user message with one part. The languages are those of the
    text part, else those of the request. If the source language is missing, `auto` or `mixed`, a sentence before the
    text asks the model to detect it.

    Raises:
        RequestError: with the field in `param`: `multi_turn_unsupported` for several messages, `tools_unsupported` for
            tools, `invalid_request` for a message that is not one text of the user, or a missing target language.
    """
    if request.tools:
        raise RequestError("TranslateGemma calls no tools.", code="tools_unsupported", param="tools")
    part = _part(request)
    target = _code(part, request, TARGET)
    if target is None:
        raise RequestError(
            f"`{TARGET}` is missing: name the language to translate into, such as `de` or `pt-BR`.", param=TARGET
        )
    text, source = part["text"], _code(part, request, SOURCE)
    if source is None or source in MIXED:
        text, source = DETECT + text, _fallback(target)
    content = {"type": "text", SOURCE: source, TARGET: target, "text": text}
    return [{"role": "user", "content": [content]}]


def _part(request: ChatRequest) -> dict[str, Any]:
    for number, message in enumerate(request.messages):
        if message.role not in ("user", "assistant"):
            raise RequestError(
                f"TranslateGemma takes no {message.role} message: send the text to translate as the user's.",
                param=f"messages[{number}].role",
            )
    if len(request.messages) > 1:
        raise RequestError("TranslateGemma takes one turn only.", code="multi_turn_unsupported", param="messages[1]")
    message = request.messages[0]
    if message.role != "user":
        raise RequestError("The text to translate must be the user's.", param="messages[0].role")
    content = message.content
    if isinstance(content, str):
        return {"type": "text", "text": content}
    if not content or len(content) > 1:
        raise RequestError("TranslateGemma takes one text part.", param="messages[0].content")
    part = content[0]
    if part.get("type") != "text":
        raise RequestError(f"This engine reads text, not {part.get('type')}.", param="messages[0].content[0].type")
    if not isinstance(part.get("text"), str):
        raise RequestError("`text` must be a text.", param="messages[0].content[0].text")
    return part


def _code(part: dict[str, Any], request: ChatRequest, name: str) -> str | None:
    part_code = part.get(name)
    if part_code is None:
        code: str | None = getattr(request, name)
        return code or None
    if not isinstance(part_code, str):
        raise RequestError(f"`{name}` must be a text.", param=f"messages[0].content[0].{name}")
    return part_code or None


def _fallback(target: str) -> str:
    """Return a language that the template knows and that is not the target."""
    return "es" if target.lower().startswith("en") else "en"
