"""Prompts that exceed the model's context: recognises how engines report them, and words the error for clients. Pure.

Clients recognise this error by its words alone. OpenAI's clients look for "maximum context length is N tokens"
(litellm), for the code, also in the message (LangChain), and for "exceeds the context window" (LangChain, in streams).
Anthropic's look for "prompt is too long: M tokens > N maximum".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CODE: Final = "context_length_exceeded"
STATUS: Final = 400
"""HTTP status in both families. Anthropic's 413 is for bodies with too many bytes."""
CACHE_EXHAUSTED: Final = "Context size has been exceeded."
"""llama-server's message to all running requests once they have filled its KV cache together. It is no overflow: each
of them may fit when sent again."""
_LLAMA_SERVERS_TYPE: Final = "exceed_context_size_error"


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """What an engine reported about a prompt that exceeds the model's context, in tokens. `limit`, `prompt_tokens`
    None: not reported. `output_tokens` None: the prompt alone exceeds the context. Writes the error message for clients
    of each API family."""

    limit: int | None = None
    """Length of the context in tokens; None: not reported."""
    prompt_tokens: int | None = None
    """Tokens of the prompt; None: not reported."""
    is_at_least: bool = False
    """Whether the prompt may have more than `prompt_tokens`, because the count was broken off."""
    output_tokens: int | None = None
    """Tokens of the answer that the request asked for, if prompt and answer together exceed the limit; None: the prompt
    alone exceeds it."""
    engine_message: str = ""
    """The engine's message, shown where a number is missing."""

    def describe_for_openai(self) -> str:
        """Return the error message in the words that OpenAI's clients look for. If `limit` or `prompt_tokens` is None,
        the engine's own message takes the place of the numbers."""
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
        """Return the error message in the words that Anthropic's clients look for. They cannot express `is_at_least`.
        If `limit` or `prompt_tokens` is None, the engine's own message takes the place of the numbers."""
        if self.limit is None or self.prompt_tokens is None:
            return self._describe_without_numbers("prompt is too long")
        if self.output_tokens is not None:
            return (
                f"input length and `max_tokens` exceed context limit: {self.prompt_tokens} + {self.output_tokens} > "
                f"{self.limit}, decrease input length or `max_tokens` and try again"
            )
        return f"prompt is too long: {self.prompt_tokens} tokens > {self.limit} maximum"

    def _describe_without_numbers(self, words: str) -> str:
        """Return `words` followed by the engine's message, or that message alone if it has these words."""
        if words in self.engine_message:
            return self.engine_message
        return f"{words}: {self.engine_message}" if self.engine_message else f"{words}."


@dataclass(frozen=True, slots=True)
class _Wording:
    """A pattern of engines' messages. Its groups are `limit` and `prompt`, and where the message has them `output`,
    `least`."""

    pattern: re.Pattern[str]
    excess: int = 0
    """Tokens by which the prompt exceeds the group `prompt` at least."""


_NUMBER: Final = r"\d{1,12}"
_LIMIT: Final = r"maximum context length is (?P<limit>\d+) tokens"
_WORDINGS: Final = tuple(
    _Wording(re.compile(pattern.replace(r"\d+", _NUMBER)), excess)
    for pattern, excess in (
        # llama-server: for a prompt; for a text to embed, which must fit one batch.
        (r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)", 0),
        (r"input \((?P<prompt>\d+) tokens\) is too large to process.*batch size: (?P<limit>\d+)\)", 0),
        # OpenAI, and ContextOverflow.describe_for_openai.
        (_LIMIT + r"\. However, your messages resulted in (?P<least>at least )?(?P<prompt>\d+) tokens", 0),
        (
            _LIMIT + r"[.,] [Hh]owever,? you requested \d+ tokens \((?P<prompt>\d+) in (?:the messages|your prompt)"
            r"[,;] (?P<output>\d+) (?:in|for) the completion\)",
            0,
        ),
        # vLLM: for a prompt that was tokenized, for one that was not, and the messages of earlier releases.
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
        # Roundhouse's workers, and LiteRT-LM in one of them.
        (r"The prompt has (?P<prompt>\d+) tokens, more than fit the context of (?P<limit>\d+)\.", 0),
        (r"maximum number of tokens allowed: (?P<prompt>\d+) >=? (?P<limit>\d+)", 0),
        # Anthropic.
        (r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+) maximum", 0),
        (r"exceed context limit: (?P<prompt>\d+) \+ (?P<output>\d+) > (?P<limit>\d+)", 0),
    )
)


def find_overflow(error: Mapping[str, Any]) -> ContextOverflow | None:
    """Return what an engine's decoded error object reports about a prompt that is too long; None if it is another
    error. Recognises the messages of known engines, OpenAI's code and llama-server's type; without a known message the
    numbers may be None."""
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
