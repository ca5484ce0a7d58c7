"""Clients that ask without pause and know every byte of the right answer."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

HANGS_S = 300
"""A request that takes longer hangs; no fault of a test lasts as long."""
PACE_S = 0.02
"""Between two requests of a client, so that refusals, which come at once, do not keep the machine from mending."""


class WrongAnswerError(Exception):
    """An answer that ended as if it were complete and is not, or that has another text."""


@dataclass
class CheckedClients:
    """Each request is answered exactly, refused in words, or cut: a connection that broke, which only a gateway that
    goes away may do. Everything else is in `wrong`."""

    url: str
    models: tuple[str, ...]
    answered: Counter[str] = field(default_factory=Counter)
    """By model."""
    refused: Counter[str] = field(default_factory=Counter)
    """By error code."""
    cut: int = 0
    """By a gateway that went away."""
    not_connected: int = 0
    """While the gateway was away."""
    wrong: list[str] = field(default_factory=list)
    _absences: int = 0
    _is_away: bool = False

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[CheckedClients]:
        """Keep `count` clients asking, until left. Half of them stream; each model has its share of both."""
        stop = asyncio.Event()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANGS_S)) as session:
            kinds = itertools.cycle(itertools.product(self.models, (True, False)))
            tasks = [
                asyncio.create_task(self._ask_until(stop, session, model, stream=stream))
                for model, stream in itertools.islice(kinds, count)
            ]
            try:
                yield self
            finally:
                stop.set()
                await asyncio.gather(*tasks)

    @property
    def requests(self) -> int:
        """All that ended."""
        ended = self.answered.total() + self.refused.total() + len(self.wrong)
        return ended + self.cut + self.not_connected

    async def answer_more(self, count: int, *models: str) -> None:
        """Wait until so many more requests to each of these models (default: all) were answered, or one wrongly."""
        goals = {model: self.answered[model] + count for model in models or self.models}
        await until(
            f"{count} more answers of each of {', '.join(goals)}",
            lambda: bool(self.wrong) or all(self.answered[model] >= goal for model, goal in goals.items()),
        )

    @contextmanager
    def gateway_away(self) -> Iterator[None]:
        """While and before this, the gateway may break connections."""
        self._absences += 1
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False

    async def _ask_until(
        self, stop: asyncio.Event, session: aiohttp.ClientSession, model: str, *, stream: bool
    ) -> None:
        while not stop.is_set():
            absences, away = self._absences, self._is_away
            try:
                code = await self._ask(session, model, stream=stream)
            except WrongAnswerError as error:
                self.wrong.append(f"{model}: {error}")
            except TimeoutError:
                self.wrong.append(f"{model}: no end within {HANGS_S} s")
            except aiohttp.ClientError as error:
                if not away and self._absences == absences:
                    self.wrong.append(f"{model}: cut while the gateway was there: {error!r}")
                elif isinstance(error, aiohttp.ClientConnectorError):
                    self.not_connected += 1
                else:
                    self.cut += 1
            else:
                if code:
                    self.refused[code] += 1
                else:
                    self.answered[model] += 1
            await asyncio.sleep(PACE_S)

    async def _ask(self, session: aiohttp.ClientSession, model: str, *, stream: bool) -> str:
        """An error's code; empty: the right answer. Raises what aiohttp raises where the connection breaks."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        text = b""
        async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            try:
                async for part in answer.content.iter_any():
                    text += part
            except aiohttp.ClientError:
                # What came before the cut must be right, too.
                if answer.content_type == "text/event-stream":
                    check_stream(text, is_cut=True)
                raise
            if answer.content_type == "text/event-stream":
                return check_stream(text)
            return check_whole(answer.status, text)


def check_whole(status: int, body: bytes) -> str:
    """The error's code, or an empty text for the right answer."""
    try:
        answer: dict[str, Any] = json.loads(body)
        if "error" in answer:
            if status < 400:
                raise WrongAnswerError(f"an error with status {status}: {body[-300:]!r}")
            return str(answer["error"]["code"])
        [choice] = answer["choices"]
        said = choice["message"]["content"], choice["finish_reason"]
    except (ValueError, KeyError, TypeError) as error:
        raise WrongAnswerError(f"{error!r} in {body[-300:]!r}") from None
    if said != (SENTENCE, "stop") or status != 200:
        raise WrongAnswerError(f"status {status}: {said}")
    return ""


def check_stream(body: bytes, *, is_cut: bool = False) -> str:
    """The same of a stream's events. Of one that `is_cut` only what came of the text is looked at."""
    *blocks, rest = body.split(b"\n\n")
    said, finish, data = "", None, [block[6:] for block in blocks if block.startswith(b"data: ")]
    for each in data:
        if each == b"[DONE]":
            continue
        try:
            event = json.loads(each)
            if "error" in event:
                return _after_a_beginning(said, str(event["error"]["code"]))
            for choice in event["choices"]:
                said += choice["delta"].get("content") or ""
                finish = choice.get("finish_reason") or finish
        except (ValueError, KeyError, TypeError) as error:
            raise WrongAnswerError(f"{error!r} in {each[-300:]!r}") from None
    if is_cut:
        return _after_a_beginning(said, "cut")
    if rest or not data or data[-1] != b"[DONE]":
        raise WrongAnswerError(f"ended in silence after {said!r}: {body[-300:]!r}")
    if (said, finish) != (SENTENCE, "stop"):
        raise WrongAnswerError(f"a stream that says {said!r} and ends with {finish}")
    return ""


def _after_a_beginning(said: str, code: str) -> str:
    if not SENTENCE.startswith(said):
        raise WrongAnswerError(f"said {said!r} before {code}")
    return code
