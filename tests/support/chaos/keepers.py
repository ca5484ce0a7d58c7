"""Clients beside the chats of a chaos campaign: what is kept for them must be there after every fault.

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
from functools import partial
from typing import Any

import aiohttp

from tests.support.http_client import HttpClient
from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

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

    async def next_answer(self, what: str, within_s: float = WHOLE_WITHIN_S) -> float:
        """Wait until a request of that kind (`document`, `response`, `tool`) that begins from now on is acknowledged.
        Return when it was, by the monotonic clock. Raises AssertionError where none is in time."""
        # The request that is under way now began before.
        goal = self.acknowledged[what] + 2
        await until(f"a {what} is answered", lambda: self.acknowledged[what] >= goal, within_s)
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
