"""Whether a model can take a request now, and why not. Pure."""

from __future__ import annotations

from controller.schema.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.protocols.common.addresses import hide_addresses
from gateway.protocols.common.file_paths import hide_paths
from gateway.routing.table import Routes


def find_model(routes: Routes, name: str) -> ModelRoute:
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

    def build_headers(self) -> dict[str, str]:
        """The table's, and `x-load-progress`."""
        headers = super().build_headers()
        return headers if self.progress is None else headers | {"x-load-progress": f"{self.progress:.2f}"}


class RemoteDownError(RoundhouseError):
    """`model_failed` of a remote model that is asked again by itself: unlike a load that failed, trying again helps."""

    def build_headers(self) -> dict[str, str]:
        """`Retry-After` alone."""
        return {"retry-after": str(max(1, round(self.retry_after_s or DEFAULT_RETRY_AFTER_S)))}


def refusal_of(route: ModelRoute, now: float, *, shows_paths: bool = False) -> RoundhouseError | None:
    """Why a request for this model is refused at Unix time `now`; None if it is loaded. `shows_paths`: the caller may
    know where the server has its files."""
    if route.state == ModelState.LOADED:
        return None
    code, text = {
        ModelState.UNLOADED: ("model_not_loaded", "is not loaded"),
        ModelState.LOADING: ("model_loading", "is being loaded"),
        ModelState.UNLOADING: ("model_unloading", "is being unloaded"),
        ModelState.FAILED: (
            "model_failed",
            "could not be loaded" if route.remote_probe is None else "is not available",
        ),
    }[route.state]
    detail = hide_addresses(route.last_error) if route.last_error else (f"{route.reason}." if route.reason else None)
    if detail and not shows_paths:
        detail = hide_paths(detail)
    detail_text = f": {detail}" if detail else "."
    wait_s = None if route.retry_at is None else max(1.0, route.retry_at - now)
    if route.state == ModelState.LOADING:
        progress_text = "" if route.progress is None else f" ({route.progress:.0%})".replace("%", " %")
        return LoadingError(f"The model {route.name!r} {text}{progress_text}{detail_text}", route.progress, wait_s)
    is_remote_down = route.state == ModelState.FAILED and route.remote_probe is not None and wait_s is not None
    error_class = RemoteDownError if is_remote_down else RoundhouseError
    return error_class(code, f"The model {route.name!r} {text}{detail_text}", param="model", retry_after_s=wait_s)


def is_worth_waiting(route: ModelRoute) -> bool:
    """Whether demand gets this model loaded. After a failed load the client is told at once instead."""
    return route.autoload and route.state != ModelState.FAILED


def not_loaded_in_time(name: str, limit_s: float, route: ModelRoute | None) -> LoadingError:
    """For a request that waited for a load of the model `name` as long as it may."""
    message = f"The model {name!r} was not loaded within {limit_s:g} s."
    return LoadingError(message, route.progress if route is not None else None)


def no_longer_loading(route: ModelRoute) -> RoundhouseError:
    """Demand no longer loads a model that is waited for: it was unloaded, perhaps before anything of it ran."""
    text = f"The model {route.name!r} was unloaded while the request waited for it."
    return RoundhouseError("model_unloading", text, param="model")
