"""Conversations with a model behind the gateway, and what each turn of one cost its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.fakes.gateway_harness import GatewayHarness
from worker.clockwork import SENTENCE


class Turn(NamedTuple):
    """One turn's answer."""

    decision: str | None
    """`X-Session`."""
    prompt_tokens: int
    cached_tokens: int

    @property
    def evaluated_tokens(self) -> int:
        """Tokens of the prompt that the engine computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass
class Conversation:
    """One client's conversation with model `m`, by chat completions, that answers `SENTENCE`."""

    here: GatewayHarness
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Of every request: `session_id`, or nothing."""
    headers: dict[str, str] = field(default_factory=dict)
    words: int = 20
    """Of each message."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self) -> Any:
        """Return the next turn's request, a context manager as aiohttp's."""
        said = f"{self.name} {len(self.messages)} " + "hello " * self.words
        self.messages.append({"role": "user", "content": said})
        body = {"model": "m", "messages": self.messages, "temperature": 0, **self.fields}
        return self.here.client.post(self.here.url + "/v1/chat/completions", json=body, headers=self.headers)

    async def turn(self) -> Turn:
        """Say something and have it answered."""
        async with self.ask() as answer:
            told = await answer.json()
            assert answer.status == 200, told
            decision = answer.headers.get("x-session")
        text = told["choices"][0]["message"]["content"]
        assert text == SENTENCE
        self.messages.append({"role": "assistant", "content": text})
        usage = told["usage"]
        return Turn(decision, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


async def disturb(here: GatewayHarness, count: int, round_: int = 0) -> None:
    """Have so many other conversations begin, one after the other."""
    for number in range(count):
        await Conversation(here, f"{round_}.{number} other").turn()
