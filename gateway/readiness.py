"""Whether a model can take a request now, why not, and the wait for one that is loaded on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.ledger import Ledger
from gateway.live_routes import LiveRoutes
from gateway.routing import Routes


def find(routes: Routes, name: str) -> ModelRoute:
    """The model that clients call `name`.

    Raises:
        RoundhouseError: `unknown_model`.
    """
    route = routes.names.get(name)
    if route is None:
        raise RoundhouseError("unknown_model", f"No model or alias is named {name!r:.200}.", param="model")
    return route


class LoadingError(RoundhouseError):
    """`model_loading`, with how far the load is where that is known (0 to 1)."""

    def __init__(self, message: str, progress: float | None, retry_after_s: float | None = None) -> None:
        super().__init__("model_loading", message, param="model", retry_after_s=retry_after_s)
        self.progress = progress

    def headers(self) -> dict[str, str]:
        """The table's, and `x-load-progress`."""
        known = super().headers()
        return known if self.progress is None else known | {"x-load-progress": f"{self.progress:.2f}"}


def refusal(route: ModelRoute, now: float) -> RoundhouseError | None:
    """Why a request for this model is refused at Unix time `now`; None if it is loaded."""
    if route.state == ModelState.LOADED:
        return None
    code, text = {
        ModelState.UNLOADED: ("model_not_loaded", "is not loaded"),
        ModelState.LOADING: ("model_loading", "is being loaded"),
        ModelState.UNLOADING: ("model_unloading", "is being unloaded"),
        ModelState.FAILED: ("model_failed", "could not be loaded"),
    }[route.state]
    told = route.last_error or (f"{route.reason}." if route.reason else None)
    why = f": {told}" if told else "."
    wait_s = None if route.retry_at is None else max(1.0, route.retry_at - now)
    if route.state == ModelState.LOADING:
        far = "" if route.progress is None else f" ({route.progress:.0%})".replace("%", " %")
        return LoadingError(f"The model {route.name!r} {text}{far}{why}", route.progress, wait_s)
    return RoundhouseError(code, f"The model {route.name!r} {text}{why}", param="model", retry_after_s=wait_s)


def is_worth_waiting(route: ModelRoute) -> bool:
    """Whether demand gets this model loaded. After a failed load the client is told at once instead."""
    return route.autoload and route.state != ModelState.FAILED


class Readiness:
    """Finds the model of a request and, where demand loads it, waits for it."""

    def __init__(self, live: LiveRoutes, ledger: Ledger, timeout_s: float, clock: Callable[[], float]) -> None:
        """`timeout_s` bounds the wait; `clock` gives Unix time in seconds."""
        self._live = live
        self._ledger = ledger
        self._timeout_s = timeout_s
        self._clock = clock

    def declared(self, name: str) -> ModelRoute:
        """The model that clients call `name`, loaded or not, as the table in force has it.

        Raises:
            RoundhouseError: there is no table yet, or no such model.
        """
        return find(self._live.current, name)

    async def loaded(self, name: str) -> ModelRoute:
        """The model called `name`, loaded, as the table in force has it.

        After the last look at the table nothing is awaited, so the caller's choice of a replica is made under it.

        Raises:
            RoundhouseError: it is unknown, or cannot be used, or was not loaded in time.
        """
        route = find(self._live.current, name)
        refused = refusal(route, self._clock())
        if refused is None:
            return route
        if not is_worth_waiting(route):
            if route.autoload:
                self._ledger.demanded(route.name)
            raise refused
        with self._ledger.waiting(route.name):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._wait(name)
            except TimeoutError:
                message = f"The model {route.name!r} was not loaded within {self._timeout_s:g} s."
                raise LoadingError(message, find(self._live.current, name).progress) from None

    async def _wait(self, name: str) -> ModelRoute:
        while True:
            await self._live.changed()
            route = find(self._live.current, name)
            refused = refusal(route, self._clock())
            if refused is None:
                return route
            if not is_worth_waiting(route):
                raise _overtaken(route) if route.state == ModelState.UNLOADED else refused


def _overtaken(route: ModelRoute) -> RoundhouseError:
    """Demand no longer loads a model that is waited for: it was unloaded, perhaps before anything of it ran."""
    text = f"The model {route.name!r} was unloaded while the request waited for it."
    return RoundhouseError("model_unloading", text, param="model")
