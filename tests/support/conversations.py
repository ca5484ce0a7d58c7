"""Conversations with a model behind the gateway, and what each turn of one cost its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.http_client import PendingReply
from worker.clockwork import SENTENCE


class Turn(NamedTuple):
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

    gateway: GatewayHarness
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Of every request: `session_id`, or nothing."""
    headers: dict[str, str] = field(default_factory=dict)
    words: int = 20
    """Of each message."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def post(self) -> PendingReply:
        """Send the next turn's request."""
        content = f"{self.name} {len(self.messages)} " + "hello " * self.words
        self.messages.append({"role": "user", "content": content})
        body: dict[str, Any] = {"messages": self.messages, "temperature": 0} | self.fields
        return self.gateway.chat(headers=self.headers, **body)

    async def turn(self) -> Turn:
        """Say something and have it answered."""
        reply = await self.post()
        completion = reply.success
        text = completion["choices"][0]["message"]["content"]
        assert text == SENTENCE
        self.messages.append({"role": "assistant", "content": text})
        usage = completion["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(reply.headers.get("x-session"), usage["prompt_tokens"], cached)


async def disturb(gateway: GatewayHarness, count: int, round_: int = 0) -> None:
    """Have so many other conversations begin, one after the other."""
    for number in range(count):
        await Conversation(gateway, f"{round_}.{number} other").turn()
