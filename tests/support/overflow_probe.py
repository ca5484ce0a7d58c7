"""`python overflow_probe.py URL MODEL LETTERS`: what packages of others raise of a prompt that is too long, as one JSON
object. Run by the interpreter that has them; imports nothing of the project."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any


def probe(url: str, model: str, text: str) -> dict[str, str]:
    """Way of asking to the names of the exception's classes, the narrowest first."""
    openai_url = f"{url}/v1"
    litellm: Any = importlib.import_module("litellm")
    chat_openai: Any = importlib.import_module("langchain_openai").ChatOpenAI
    chat_anthropic: Any = importlib.import_module("langchain_anthropic").ChatAnthropic
    messages = [{"role": "user", "content": text}]

    def by_litellm(provider: str, base: str, *, stream: bool) -> None:
        answer = litellm.completion(
            model=f"{provider}/{model}", api_base=base, api_key="none", messages=messages, stream=stream, max_retries=0
        )
        if stream:
            list(answer)

    def by_langchain(chat: Any, *, stream: bool) -> None:
        list(chat.stream(text)) if stream else chat.invoke(text)

    openai_chat = {
        by_responses: chat_openai(
            model=model, base_url=openai_url, api_key="none", max_retries=0, use_responses_api=by_responses
        )
        for by_responses in (False, True)
    }
    anthropic_chat = chat_anthropic(model=model, base_url=url, api_key="none", max_retries=0)
    asks: dict[str, Callable[..., object]] = {
        "LangChain, chat completions": lambda stream: by_langchain(openai_chat[False], stream=stream),
        "LangChain, responses": lambda stream: by_langchain(openai_chat[True], stream=stream),
        "LangChain, messages": lambda stream: by_langchain(anthropic_chat, stream=stream),
        "litellm, chat completions": lambda stream: by_litellm("openai", openai_url, stream=stream),
        "litellm, messages": lambda stream: by_litellm("anthropic", url, stream=stream),
        "litellm, responses": lambda stream: list(
            litellm.responses(
                model=f"openai/{model}", api_base=openai_url, api_key="none", input=text, stream=stream, max_retries=0
            )
        ),
    }
    return {
        f"{name}{', a stream' * stream}": _raised(ask, stream=stream)
        for name, ask in asks.items()
        for stream in (False, True)
    }


def _raised(ask: Callable[..., object], *, stream: bool) -> str:
    try:
        ask(stream)
    except Exception as error:
        return " ".join(each.__name__ for each in type(error).__mro__)
    return "nothing"


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], "x" * int(sys.argv[3]))))
