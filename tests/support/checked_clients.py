"""Clients that ask without pause and know every byte of the right answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

HANGS_S = 60.0
"""A request that takes longer hangs; no fault of a test lasts as long."""
PACE_S = 0.05
"""Between two requests of a client, so that refusals, which come at once, do not keep the machine from mending."""
GATEWAYS_MARK = "x-request-id"
"""Header of each of its answers."""


class Outcome(StrEnum):
    """How a request ended, beside `refused: CODE`, an error in words."""

    ANSWERED = "answered"
    """Every byte was right."""
    CUT = "cut"
    """The connection broke, so that the client knows that the answer is not whole; what had come of it was right."""
    NOT_CONNECTED = "not connected"
    WRONG = "wrong"
    """Another text, or an answer of no known form."""
    SILENT = "silent"
    """It ended as if it were whole, and is not."""
    HANGING = "hanging"


REFUSED = "refused: "


class StrangerError(Exception):
    """Not the gateway answered: while its container is away, its published port may lead to this machine's way out,
    where a proxy answers."""


class WrongAnswerError(Exception):
    """An answer that has another text, or no known form."""

    outcome = Outcome.WRONG


class SilentEndError(WrongAnswerError):
    outcome = Outcome.SILENT


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that ended, with its times by the monotonic clock."""

    model: str
    stream: bool
    began: float
    ended: float
    outcome: str
    """An Outcome, or `refused: CODE`."""
    detail: str = ""


@dataclass
class CheckedClients:
    """Each client asks one request after the other. What ended otherwise than with the right answer is in `lost`."""

    url: str
    models: tuple[str, ...]
    answered: Counter[str] = field(default_factory=Counter)
    """By model."""
    lost: list[Ended] = field(default_factory=list)
    _waiting: list[tuple[str | None, float, asyncio.Future[Ended]]] = field(default_factory=list)

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
        return self.answered.total() + len(self.lost)

    @property
    def wrong(self) -> list[Ended]:
        """Those that no fault excuses: wrong, silent, hanging."""
        return [each for each in self.lost if each.outcome in (Outcome.WRONG, Outcome.SILENT, Outcome.HANGING)]

    async def answer_more(self, count: int, *models: str) -> None:
        """Wait until so many more requests to each of these models (default: all) were answered, or one wrongly."""
        goals = {model: self.answered[model] + count for model in models or self.models}
        await until(
            f"{count} more answers of each of {', '.join(goals)}",
            lambda: bool(self.wrong) or all(self.answered[model] >= goal for model, goal in goals.items()),
        )

    async def first_answer(self, model: str | None, begun_after: float, within_s: float) -> Ended:
        """The first right answer to a request that begins after that time. `model` None: of any.

        Raises TimeoutError when none comes in time.
        """
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        entry = (model, begun_after, future)
        self._waiting.append(entry)
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            raise TimeoutError(f"no answer of {model or 'any model'} within {within_s:g} s") from None
        finally:
            self._waiting.remove(entry)

    async def _ask_until(
        self, stop: asyncio.Event, session: aiohttp.ClientSession, model: str, *, stream: bool
    ) -> None:
        while not stop.is_set():
            began, detail = time.monotonic(), ""
            try:
                code = await self._ask(session, model, stream=stream)
            except WrongAnswerError as error:
                outcome, detail = error.outcome.value, str(error)
            except TimeoutError:
                outcome = Outcome.HANGING.value
            except (aiohttp.ClientConnectorError, StrangerError) as error:
                outcome, detail = Outcome.NOT_CONNECTED.value, repr(error)
            except aiohttp.ClientError as error:
                outcome, detail = Outcome.CUT.value, repr(error)
            else:
                outcome = REFUSED + code if code else Outcome.ANSWERED.value
            self._note(Ended(model, stream, began, time.monotonic(), outcome, detail))
            await asyncio.sleep(PACE_S)

    def _note(self, ended: Ended) -> None:
        if ended.outcome != Outcome.ANSWERED:
            self.lost.append(ended)
            return
        self.answered[ended.model] += 1
        for model, begun_after, future in self._waiting:
            if model in (None, ended.model) and ended.began > begun_after and not future.done():
                future.set_result(ended)

    async def _ask(self, session: aiohttp.ClientSession, model: str, *, stream: bool) -> str:
        """An error's code; empty: the right answer. Raises what aiohttp raises where the connection breaks."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        text = b""
        async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            if GATEWAYS_MARK not in answer.headers:
                raise StrangerError(f"status {answer.status}: {(await answer.read())[-300:]!r}")
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
    """The error's code, or an empty text for the right answer. Raises WrongAnswerError."""
    try:
        answer: dict[str, Any] = json.loads(body)
        if "error" in answer:
            if status < 400:
                raise WrongAnswerError(f"an error with status {status}: {body[-300:]!r}")
            return str(answer["error"]["code"])
        [choice] = answer["choices"]
        said = choice["message"]["content"], choice["finish_reason"]
    except json.JSONDecodeError as error:
        raise SilentEndError(f"{error!r} in {body[-300:]!r}") from None
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
        raise SilentEndError(f"ended in silence after {said!r}: {body[-300:]!r}")
    if (said, finish) != (SENTENCE, "stop"):
        raise WrongAnswerError(f"a stream that says {said!r} and ends with {finish}")
    return ""


def _after_a_beginning(said: str, code: str) -> str:
    if not SENTENCE.startswith(said):
        raise WrongAnswerError(f"said {said!r} before {code}")
    return code
