"""Prompts that have more tokens than a model's context: how engines say so, and how clients are told. Pure.

Clients know such a refusal by its words alone. OpenAI's look for "maximum context length is N tokens" (litellm), the
code, in the message too (LangChain), and "exceeds the context window" (LangChain, of a stream); Anthropic's for "prompt
is too long: M tokens > N maximum".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CODE: Final = "context_length_exceeded"
STATUS: Final = 400
"""Of both families. Anthropic's 413 is for bodies with too many bytes."""
CACHE_EXHAUSTED: Final = "Context size has been exceeded."
"""What llama-server says to all its requests when they have filled its KV cache together. It is no overflow: asked
again, each of them may fit."""
_LLAMA_SERVERS_TYPE: Final = "exceed_context_size_error"


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """What is known of one refusal."""

    limit: int | None = None
    """Tokens of the context; None: nobody said."""
    prompt_tokens: int | None = None
    """Tokens of the prompt; None: nobody said."""
    is_at_least: bool = False
    """The prompt may have more: whoever counted gave up."""
    output_tokens: int | None = None
    """The prompt alone fits, and not with so many tokens of an answer, which the request asked for; None: the prompt
    does not fit."""
    engine_message: str = ""
    """What the engine said, for where a number lacks."""

    def describe_for_openai(self) -> str:
        """The message in OpenAI's words."""
        if self.limit is None or self.prompt_tokens is None:
            return self._describe_without_numbers(f"The prompt exceeds the context window ({CODE})")
        limit_text = f"This model's maximum context length is {self.limit} tokens. However,"
        if self.output_tokens is not None:
            sum_tokens = self.prompt_tokens + self.output_tokens
            return (
                f"{limit_text} you requested {sum_tokens} tokens ({self.prompt_tokens} in the messages, "
                f"{self.output_tokens} in the completion). Please reduce the length of the messages or completion; "
                f"their sum exceeds the context window ({CODE})."
            )
        at_least = "at least " if self.is_at_least else ""
        return (
            f"{limit_text} your messages resulted in {at_least}{self.prompt_tokens} tokens. Please reduce the length "
            f"of the messages; the prompt exceeds the context window ({CODE})."
        )

    def describe_for_anthropic(self) -> str:
        """The message in Anthropic's words, which have no place for `is_at_least`."""
        if self.limit is None or self.prompt_tokens is None:
            return self._describe_without_numbers("prompt is too long")
        if self.output_tokens is not None:
            return (
                f"input length and `max_tokens` exceed context limit: {self.prompt_tokens} + {self.output_tokens} > "
                f"{self.limit}, decrease input length or `max_tokens` and try again"
            )
        return f"prompt is too long: {self.prompt_tokens} tokens > {self.limit} maximum"

    def _describe_without_numbers(self, words: str) -> str:
        """`words`, with what the engine said where that adds something."""
        if words in self.engine_message:
            return self.engine_message
        return f"{words}: {self.engine_message}" if self.engine_message else f"{words}."


@dataclass(frozen=True, slots=True)
class _Wording:
    """Words that an engine refuses with. Groups: `limit`, `prompt`, `output`, `least`."""

    pattern: re.Pattern[str]
    excess: int = 0
    """What `prompt` lacks at least."""


_NUMBER: Final = r"\d{1,12}"
_LIMIT: Final = r"maximum context length is (?P<limit>\d+) tokens"
_WORDINGS: Final = tuple(
    _Wording(re.compile(pattern.replace(r"\d+", _NUMBER)), excess)
    for pattern, excess in (
        # llama-server: a prompt, and a text to embed, which must fit one batch.
        (r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)", 0),
        (r"input \((?P<prompt>\d+) tokens\) is too large to process.*batch size: (?P<limit>\d+)\)", 0),
        # OpenAI, and ContextOverflow itself.
        (_LIMIT + r"\. However, your messages resulted in (?P<least>at least )?(?P<prompt>\d+) tokens", 0),
        (
            _LIMIT + r"[.,] [Hh]owever,? you requested \d+ tokens \((?P<prompt>\d+) in (?:the messages|your prompt)"
            r"[,;] (?P<output>\d+) (?:in|for) the completion\)",
            0,
        ),
        # vLLM: a prompt that was counted, one that was not, and earlier releases.
        (_LIMIT + r"\. However, your prompt contains (?P<least>at least )?(?P<prompt>\d+) input tokens", 0),
        (
            _LIMIT + r"\. However, your prompt contains \d+ characters "
            r"\(more than \d+ characters, which is the (?P<least>upper bound) for (?P<prompt>\d+) input tokens",
            1,
        ),
        (_LIMIT + r"\. However, your request has (?P<prompt>\d+) input tokens", 0),
        (
            _LIMIT + r"\. However, you requested (?P<output>\d+) output tokens "
            r"and your prompt contains (?P<least>at least )?(?P<prompt>\d+) input tokens",
            0,
        ),
        (_LIMIT + r" and your request has (?P<prompt>\d+) input tokens \((?P<output>\d+) > ", 0),
        (
            r"prompt \(length (?P<prompt>\d+)\) (?:plus the number of requested output tokens \(at least 1\) )?is "
            r"longer than the maximum model length of (?P<limit>\d+)",
            0,
        ),
        (r"Input length \((?P<prompt>\d+)\) exceeds model's maximum context length \((?P<limit>\d+)\)", 0),
        # Roundhouse's workers, and the library in one of them.
        (r"The prompt has (?P<prompt>\d+) tokens, more than fit the context of (?P<limit>\d+)\.", 0),
        (r"maximum number of tokens allowed: (?P<prompt>\d+) >=? (?P<limit>\d+)", 0),
        # Anthropic.
        (r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+) maximum", 0),
        (r"exceed context limit: (?P<prompt>\d+) \+ (?P<output>\d+) > (?P<limit>\d+)", 0),
    )
)


def find_overflow(error: Mapping[str, Any]) -> ContextOverflow | None:
    """What an engine's error object says of a prompt that is too long; None: it is another error."""
    message = error.get("message")
    message = message if isinstance(message, str) else ""
    for wording in _WORDINGS:
        match = wording.pattern.search(message)
        if match is not None:
            groups = match.groupdict()
            return ContextOverflow(
                limit=int(groups["limit"]),
                prompt_tokens=int(groups["prompt"]) + wording.excess,
                is_at_least=groups.get("least") is not None,
                output_tokens=int(groups.get("output") or 0) or None,
                engine_message=message,
            )
    if error.get("code") != CODE and error.get("type") != _LLAMA_SERVERS_TYPE:
        return None
    return ContextOverflow(_count(error.get("n_ctx")), _count(error.get("n_prompt_tokens")), engine_message=message)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 and not isinstance(value, bool) else None
