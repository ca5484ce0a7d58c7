"""Clients of a chaos campaign: chats without pause that know every byte of the right answer, and what is kept for
clients over every fault.

A document that was added with 202 or 200 is found again with its last acknowledged text, a deleted one is not; a
response that said `store: true` is read again; a tool of an MCP server answers what it was given.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import aiohttp

from tests.support.http_client import HttpClient
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
        received = choice["message"]["content"], choice["finish_reason"]
    except json.JSONDecodeError as error:
        raise SilentEndError(f"{error!r} in {body[-300:]!r}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WrongAnswerError(f"{error!r} in {body[-300:]!r}") from None
    if received != (SENTENCE, "stop") or status != 200:
        raise WrongAnswerError(f"status {status}: {received}")
    return ""


def check_stream(body: bytes, *, is_cut: bool = False) -> str:
    """The same of a stream's events. Of one that `is_cut` only what came of the text is looked at."""
    *blocks, rest = body.split(b"\n\n")
    text, finish, data = "", None, [block[6:] for block in blocks if block.startswith(b"data: ")]
    for each in data:
        if each == b"[DONE]":
            continue
        try:
            event = json.loads(each)
            if "error" in event:
                return _after_a_beginning(text, str(event["error"]["code"]))
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice.get("finish_reason") or finish
        except (ValueError, KeyError, TypeError) as error:
            raise WrongAnswerError(f"{error!r} in {each[-300:]!r}") from None
    if is_cut:
        return _after_a_beginning(text, "cut")
    if rest or not data or data[-1] != b"[DONE]":
        raise SilentEndError(f"ended in silence after {text!r}: {body[-300:]!r}")
    if (text, finish) != (SENTENCE, "stop"):
        raise WrongAnswerError(f"a stream that says {text!r} and ends with {finish}")
    return ""


def _after_a_beginning(text: str, code: str) -> str:
    if not SENTENCE.startswith(text):
        raise WrongAnswerError(f"said {text!r} before {code}")
    return code


DOCUMENTS = 24
"""Ids that are written again and again."""
RESPONSES = 24
"""Newest stored responses that are looked at after each fault."""
PAUSE_S = 0.2
"""Between two requests of one kind."""
WHOLE_WITHIN_S = 180.0
ANSWERS_WITHIN_S = 60.0
TENANT = {"X-Client-Id": "chaos"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request of a keeper that was not answered rightly, with its times by the monotonic clock."""

    what: str
    began: float
    ended: float
    detail: str


@dataclass
class Keepers:
    """Three clients, one of each kind. `model` answers the responses, `tool` the calls."""

    url: str
    model: str
    tool: str
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Requests that were acknowledged, by kind."""
    refused: list[Refusal] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """What was acknowledged and is not there: no fault excuses it."""
    _texts: dict[str, set[str | None]] = field(default_factory=dict)
    """By a document's id, what it may be: the last acknowledged text, or one of those whose requests had no answer
    since. None: deleted."""
    _responses: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Keepers]:
        """Keep the clients asking, until left."""
        stop = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=TENANT) as self._session:
            acts = {"document": self._write_document, "response": self._store_response, "tool": self._call_tool}
            tasks = [asyncio.create_task(self._act_until(stop, what, act)) for what, act in acts.items()]
            try:
                yield self
            finally:
                stop.set()
                await asyncio.gather(*tasks)

    async def become_whole(self) -> None:
        """Wait until each kind was acknowledged once more, then look whether everything acknowledged is there."""
        before = self.acknowledged.copy()
        kinds = ("document", "response", "tool")
        await until(
            "documents, stored responses and a tool answer",
            lambda: all(self.acknowledged[kind] > before[kind] for kind in kinds),
            WHOLE_WITHIN_S,
        )
        for response in self._responses[-RESPONSES:]:
            await self._confirm(f"response {response}", partial(self._is_stored, response))
        for document in sorted(self._texts):
            # The writer may replace the document meanwhile: its newer text is another right one.
            await self._confirm(f"document {document}", partial(self._is_as_written, document))

    async def next_answer(self, what: str) -> float:
        """Wait until a request of that kind (`document`, `response`, `tool`) that begins from now on is acknowledged.
        Return when it was, by the monotonic clock. Raises AssertionError where none is in time."""
        # The request that is under way now began before.
        goal = self.acknowledged[what] + 2
        await until(f"a {what} is answered", lambda: self.acknowledged[what] >= goal, WHOLE_WITHIN_S)
        return time.monotonic()

    def forget_responses(self) -> None:
        """Expect none of the stored responses: their file was deleted."""
        self._responses.clear()

    async def _confirm(self, what: str, look: Callable[[], Awaitable[bool]]) -> None:
        try:
            await until(f"{what} is there", look, ANSWERS_WITHIN_S)
        except AssertionError as error:
            self.lost.append(f"{what}: {error}")

    async def _act_until(self, stop: asyncio.Event, what: str, act: Callable[[int], Awaitable[str]]) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            began = time.monotonic()
            try:
                detail = await act(number)
            except (aiohttp.ClientError, TimeoutError) as error:
                detail = repr(error)
            if detail:
                self.refused.append(Refusal(what, began, time.monotonic(), detail))
            else:
                self.acknowledged[what] += 1
            await asyncio.sleep(PAUSE_S)

    async def _request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return (await HttpClient(self.url, self._session).request(method, path, body)).result

    # Each returns why the request was refused; empty: it was acknowledged.

    async def _write_document(self, number: int) -> str:
        document = f"d{number % DOCUMENTS}"
        known = self._texts.setdefault(document, {None})
        # Of each nine, one is deleted: also what is deleted must stay so.
        text = None if number % 9 == 8 else f"Engine {number} stands at track w{number}w."
        known.add(text)
        if text is None:
            status, answer = await self._request("DELETE", f"/v1/documents/{document}")
            is_done = status in (200, 404)
        else:
            status, answer = await self._request("POST", "/v1/documents", {"id": document, "text": text})
            is_done = status in (200, 202)
        if is_done:
            self._texts[document] = {text}
        return "" if is_done else f"{status} {answer}"

    async def _is_as_written(self, document: str) -> bool:
        status, content = await self._request("GET", f"/v1/documents/{document}/content")
        if status == 404:
            return None in self._texts[document]
        if status != 200 or content not in self._texts[document]:
            return False
        word = content.rstrip(".").rpartition(" ")[2]
        status, found = await self._request("POST", "/v1/search", {"query": word, "mode": "sparse"})
        return status == 200 and [hit["document_id"] for hit in found["data"]][:1] == [document]

    async def _store_response(self, number: int) -> str:
        body = {"model": self.model, "input": "Hi", "store": True, "stream": number % 2 == 1}
        status, answer = await self._request("POST", "/v1/responses", body)
        if status == 200 and number % 2 == 1:
            events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
            ends = [each["response"] for each in events if each["type"] == "response.completed"]
            if not ends:
                return f"a stream that ends with {answer[-300:]!r}"
            answer = ends[0]
        if status != 200:
            return f"{status} {answer}"
        if _said(answer) != SENTENCE:
            return f"another answer: {answer}"
        if not answer["store"]:
            return "it was not stored, as its end said"
        self._responses.append(answer["id"])
        return ""

    async def _is_stored(self, response: str) -> bool:
        status, answer = await self._request("GET", f"/v1/responses/{response}")
        return status == 200 and _said(answer) == SENTENCE

    async def _call_tool(self, number: int) -> str:
        text = f"word {number}"
        status, answer = await self._request("POST", "/tools", {"tool": self.tool, "params": {"text": text}})
        return "" if (status, answer) == (200, {"plain_text_response": text}) else f"{status} {answer}"


def _said(response: dict[str, Any]) -> str:
    texts = [part["text"] for item in response["output"] for part in item.get("content", []) if "text" in part]
    return "".join(texts)
