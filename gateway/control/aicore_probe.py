"""Asks the model with the role `aicore`, typically a phone's server, whether Android's AICore can be used there."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final, NamedTuple

import aiohttp

from common.network.bounded_answer import gather_whole, parse_json
from common.network.errors import UnreadableAnswerError
from controller.schema.routing import Endpoint, ModelRoute
from controller.schema.status import ModelState
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.table import Routes

INTERVAL_S: Final = 10.0
"""Seconds between two questions for `/health`."""
TIMEOUT_S: Final = 5.0
"""Seconds that an answer may take."""
MAX_BYTES: Final = 256 * 1024
"""Maximum bytes of an answer."""
WORDS: Final = {3: "available", 2: "downloadable", 1: "downloading", 0: "unavailable"}
"""Status codes, and their words."""
_STATES: Final = {ModelState.LOADED: 3, ModelState.LOADING: 1}


class AicoreStatus(NamedTuple):
    """Whether Android's AICore can be used at the server of the model `model_id`.

    `code`: 3 available, 2 downloadable, 1 downloading, 0 unavailable; None: the server could not be asked, and `error`
    says why. `told`: the server's own answer; empty: it gave none.
    """

    model_id: str
    code: int | None
    """Status code, a key of `WORDS`; None: the server could not be asked."""
    error: str | None = None
    """Why the server could not be asked; None: it was asked."""
    told: dict[str, Any] = {}
    """The server's own answer; empty: it gave none."""

    @property
    def word(self) -> str:
        """The status in a word of `WORDS`; `unknown` if the server could not be asked."""
        return "unknown" if self.code is None else WORDS[self.code]


def find_aicore(routes: Routes) -> ModelRoute | None:
    """Return the first model with the role `aicore` in the table; None: none is declared."""
    return next((route for route in routes.models.values() if route.role == "aicore"), None)


def read_status(model: str, status: int, body: bytes) -> AicoreStatus:
    """Return what a server's answer at `/v1/aicore/status` says. `status`: the answer's HTTP status.

    A server that does not know the path (404, 405) is an ordinary one, and counts as available. Any other answer
    without a known `status_code` gives the code None and an error; nothing is raised. `model`: name for the result.
    """
    if status in (404, 405):
        return AicoreStatus(model, 3)
    try:
        told = parse_json(body)
    except UnreadableAnswerError:
        told = None
    code = told.get("status_code") if isinstance(told, dict) else None
    if status != 200 or not isinstance(told, dict) or type(code) is not int or code not in WORDS:
        return AicoreStatus(model, None, f"The server answered with status {status} and no status of AICore.")
    return AicoreStatus(model, code, None, told)


class AicoreProbe:
    """Asks the server of the model with the role `aicore` for the state of AICore, again and again: read `latest`.

    Use it as `async with`, and run `run` as a task within the context; cancel the task before leaving. `interval_s`:
    seconds from an answer to the next question.
    """

    def __init__(self, live: LiveRoutes, interval_s: float = INTERVAL_S) -> None:
        self._live = live
        self._interval_s = interval_s
        self._session: aiohttp.ClientSession
        self.latest: AicoreStatus | None = None
        """None: no model has the role, or it was not asked yet."""

    async def __aenter__(self) -> AicoreProbe:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "roundhouse", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def run(self) -> None:
        """Ask the model with the role `aicore` for its state, set `latest`, and repeat that after `interval_s` seconds.

        The model is looked up in the routing table each time. Runs until it is cancelled, and never returns. Call
        within the context. Failures of the server are part of `latest`; nothing of them is raised.
        """
        while True:
            routes = self._live.current_or_none
            route = None if routes is None else find_aicore(routes)
            self.latest = None if route is None else await self.ask(route)
            await asyncio.sleep(self._interval_s)

    async def ask(self, route: ModelRoute, *, probes_all: bool = False) -> AicoreStatus:
        """Ask the server of the model `route` for the state of AICore now, and return the answer.

        Waits `TIMEOUT_S` (5) seconds at most. Does not set `latest`; call it within the context. `probes_all`: have the
        server check each of its configurations, too. A remote model that has no endpoint now is not asked: its code is
        None. A model that is no remote is not asked either: its own state counts (loaded 3, loading 1, else 2 if it is
        `autoload` and 0 if not). Failures are part of the result.
        """
        remote = next((endpoint for endpoint in route.endpoints if endpoint.remote), None)
        if remote is None:
            if route.remote_probe is not None:
                return AicoreStatus(route.name, None, f"The model is {route.state.value}: its server was not asked.")
            return AicoreStatus(route.name, _STATES.get(route.state, 2 if route.autoload else 0))
        try:
            status, body = await self._fetch(remote, "?probe=all" if probes_all else "")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return AicoreStatus(route.name, None, "The server does not answer.")
        except UnreadableAnswerError as error:
            return AicoreStatus(route.name, None, f"The server's answer cannot be read: {error}.")
        return read_status(route.name, status, body)

    async def _fetch(self, endpoint: Endpoint, query: str) -> tuple[int, bytes]:
        headers = {} if endpoint.token is None else {"Authorization": f"Bearer {endpoint.token.get_secret_value()}"}
        url = f"{endpoint.base_url}{endpoint.api_prefix}/aicore/status{query}"
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await gather_whole(answer.content.iter_any(), most_bytes=MAX_BYTES)
