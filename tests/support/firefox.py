"""Debian's Firefox, driven by WebDriver BiDi over a WebSocket: Playwright drives only a Firefox of its own build."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from tests.support.require import require

FIREFOX: Final = "firefox-esr"
DEADLINE_S: Final = 90
"""How long one answer of the browser may take: the machine may be busy."""
_LISTENS: Final = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")


def require_firefox() -> None:
    """Skip the test, or fail where CI requires the page, unless Firefox is there."""
    require("page", shutil.which(FIREFOX) is not None, f"no {FIREFOX}: apt-get install {FIREFOX}")


class FirefoxTab:
    """One tab. `events` holds what the browser told beside answers, as BiDi has it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._context = ""
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> Any:
        """The result of a command. Raises AssertionError for an error of the browser's."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(DEADLINE_S):
            while (message := await self._socket.receive_json()).get("id") != number:
                self.events.append(message)
        assert message["type"] == "success", message
        return message["result"]

    async def open(self, url: str) -> None:
        """Load a page, and note its console and its requests from the first one on."""
        await self.call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        tree = await self.call("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]
        await self.call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    async def wait_for(self, expression: str) -> None:
        """Wait until JavaScript is true of the page."""
        poll = (
            f"new Promise(done => {{ const look = () => ({expression}) ? done(true) : setTimeout(look, 50); look(); }})"
        )
        target = {"context": self._context}
        await self.call("script.evaluate", expression=poll, target=target, awaitPromise=True)

    async def type_into(self, role: str, name: str, text: str) -> None:
        """Focus the one element of that role and accessible name, and press the keys of the text."""
        locator = {"type": "accessibility", "value": {"role": role, "name": name}}
        found = await self.call("browsingContext.locateNodes", context=self._context, locator=locator)
        [node] = found["nodes"]
        await self.call(
            "script.callFunction",
            functionDeclaration="(element) => element.focus()",
            arguments=[{"sharedId": node["sharedId"]}],
            target={"context": self._context},
            awaitPromise=False,
        )
        keys = [{"type": press, "value": each} for each in text for press in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": keys}]
        await self.call("input.performActions", context=self._context, actions=actions)


@contextlib.asynccontextmanager
async def open_firefox() -> AsyncIterator[FirefoxTab]:
    """A tab of a Firefox without a window, with a new profile."""
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(FIREFOX, "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"),
            env={"HOME": profile, "PATH": os.environ["PATH"]},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (listens := _LISTENS.search(line := await process.stderr.readline())) is None:
                    assert line, "Firefox ended"
            address = listens[1].decode() + "/session"
            async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
                tab = FirefoxTab(socket)
                await tab.call("session.new", capabilities={})
                yield tab
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.communicate()
