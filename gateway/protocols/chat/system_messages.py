"""Moves system messages into the turns beside them, for chat templates that accept one only at the start. Pure.

Coding agents send later ones: Claude Code with its beta `mid-conversation-system-2026-04-07`, Codex as `developer`
items.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.protocols.common.conversation import Fields

_SYSTEM_ROLES: Final = ("system", "developer")
_TURN_ROLES: Final = ("user", "tool", "function")
"""Roles of messages that are not the model's. Anthropic's API puts tool results into user messages too."""
_REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
"""The form in which Claude Code itself puts such texts into user messages, for servers without that beta."""


def fold_system_messages(messages: list[Any]) -> list[Any]:
    """Return the messages with a system message at the start only; the same list if nothing must change. The given
    list and its messages are not changed. System messages that hold more than text stay where they are.

    Leading system and developer messages become one. A later one is appended to the message before it, if that is the
    user's or a tool result. Otherwise its text goes to the start of the next message if that is one of those, else into
    a user message of its own.

    Where a text goes depends on the neighbouring messages alone, so that a growing conversation keeps the prefix that
    engines have cached. No message is put between a tool call and its result, and none after a result: some templates
    drop earlier thoughts once another user message follows.
    """
    leading_count = 0
    while leading_count < len(messages) and _is_system(messages[leading_count]):
        leading_count += 1
    later_messages = messages[leading_count:]
    is_plain_start = leading_count == 0 or (leading_count == 1 and messages[0]["role"] == "system")
    if is_plain_start and not any(map(_is_system, later_messages)):
        return messages
    folded_messages: list[Any] = messages[:leading_count] if is_plain_start else []
    if not is_plain_start:
        leading_text = "\n\n".join(_system_text(message) for message in messages[:leading_count])
        folded_messages.append({"role": "system", "content": leading_text})
    waiting_texts: list[str] = []
    for message in later_messages:
        if not _is_system(message):
            if not waiting_texts:
                folded_messages.append(message)
            elif _is_turn(message):
                folded_messages.append(_with_texts(message, waiting_texts, before=True))
            else:
                folded_messages += [_user_message(waiting_texts), message]
            waiting_texts = []
        elif folded_messages and not waiting_texts and _is_turn(folded_messages[-1]):
            folded_messages[-1] = _with_texts(folded_messages[-1], [_reminder(message)], before=False)
        else:
            waiting_texts.append(_reminder(message))
    if waiting_texts:
        folded_messages.append(_user_message(waiting_texts))
    return folded_messages


def _is_system(message: Any) -> bool:
    """Whether this is a system or developer message of text alone. Others are left for the engine to refuse."""
    if not isinstance(message, dict) or message.get("role") not in _SYSTEM_ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_text, content)))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_turn(message: Any) -> bool:
    """Whether text can be added to the message."""
    return (
        isinstance(message, dict)
        and message.get("role") in _TURN_ROLES
        and isinstance(message.get("content"), str | list)
    )


def _reminder(message: Fields) -> str:
    return _REMINDER.format(_system_text(message))


def _system_text(message: Fields) -> str:
    return _plain_text(message["content"])


def _plain_text(content: Any) -> str:
    """Return the text, parts joined as engines join the parts of a message."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _user_message(texts: list[str]) -> Fields:
    return {"role": "user", "content": "\n\n".join(texts)}


def _with_texts(message: Fields, texts: list[str], *, before: bool) -> Fields:
    """Return the message with `texts` added. Content in parts of text becomes a string, so that a client that sends a
    text once as a string and once as parts gets the same prompt."""
    content = message["content"]
    if isinstance(content, str) or all(map(_is_text, content)):
        all_texts = [*texts, _plain_text(content)] if before else [_plain_text(content), *texts]
        return {**message, "content": "\n\n".join(filter(None, all_texts))}
    parts = [{"type": "text", "text": text} for text in texts]
    return {**message, "content": [*parts, *content] if before else [*content, *parts]}
