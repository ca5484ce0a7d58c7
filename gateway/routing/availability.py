"""Whether a model can be served now, in the words of an error, and what is degraded. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from contract.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.protocols.common.hiding import hide_addresses, hide_paths
from gateway.routing.table import Routes

LITERT_LM: Final = "litert_lm"
"""The backend whose failed loads have a code of their own, as the phone's server has it."""


def find_model(routes: Routes, name: str) -> ModelRoute:
    """Return the model with exactly this name or alias, in whatever state it is. Whether the caller's key may use the
    model is not checked.

    Raises:
        RoundhouseError: `unknown_model` if no declared model has it.
    """
    route = routes.names.get(name)
    if route is None:
        raise RoundhouseError("unknown_model", f"No model or alias is named {name!r:.200}.", param="model")
    return route


class LoadingError(RoundhouseError):
    """Error `model_loading` of a request to a model that is being loaded, or was not loaded in time.

    `progress` is the part of the load that is done, from 0 to 1; None: unknown. `retry_after_s` None: the client is
    told to retry after `DEFAULT_RETRY_AFTER_S` (5).
    """

    def __init__(self, message: str, progress: float | None, retry_after_s: float | None = None) -> None:
        super().__init__("model_loading", message, param="model", retry_after_s=retry_after_s)
        self.progress = progress

    def build_headers(self) -> dict[str, str]:
        """Return `retry-after` in whole seconds, and `x-load-progress` with two decimals (`0.25`) if the progress is
        known."""
        headers = super().build_headers()
        return headers if self.progress is None else headers | {"x-load-progress": f"{self.progress:.2f}"}


class RemoteDownError(RoundhouseError):
    """Error `model_failed` of a remote model whose health probe failed, and is repeated at a known time.

    Unlike after a failed load, a retry may help.
    """

    def build_headers(self) -> dict[str, str]:
        """Return `retry-after` in whole seconds, at least 1 (`DEFAULT_RETRY_AFTER_S`, 5, if no time is known), in place
        of a failed model's `x-should-retry: false`."""
        return {"retry-after": str(max(1, round(self.retry_after_s or DEFAULT_RETRY_AFTER_S)))}


def refusal_of(route: ModelRoute, now: float, *, is_for_admin: bool = False) -> RoundhouseError | None:
    """Return, without raising it, the error for a request to a model that is not loaded; None if it is loaded.

    The code is `model_not_loaded`, `model_unloading`, `model_failed` (as `RemoteDownError` for a remote model that is
    probed again; `LITERT_INIT_FAILED` instead for the backend `litert_lm`) or, as `LoadingError`, `model_loading`. Its
    message has the reason of `reason_of`. `retry_after_s` is the time until `route.retry_at`, at least 1 s; None:
    `retry_at` is not known. `now`: Unix time in seconds. `is_for_admin`: whoever reads the error may administer, so
    that the reason may have file paths and the engine's own words.
    """
    if route.state == ModelState.LOADED:
        return None
    code, text = {
        ModelState.UNLOADED: ("model_not_loaded", "is not loaded"),
        ModelState.SLEEPING: ("model_not_loaded", "sleeps"),
        ModelState.LOADING: ("model_loading", "is being loaded"),
        ModelState.UNLOADING: ("model_unloading", "is being unloaded"),
        ModelState.FAILED: (
            "model_failed",
            "could not be loaded" if route.remote_probe is None else "is not available",
        ),
    }[route.state]
    detail = reason_of(route, is_for_admin=is_for_admin)
    end = "" if route.last_error else "."
    detail_text = f": {detail}{end}" if detail else "."
    wait_s = None if route.retry_at is None else max(1.0, route.retry_at - now)
    if route.state == ModelState.LOADING:
        progress_text = "" if route.progress is None else f" ({route.progress:.0%})".replace("%", " %")
        return LoadingError(f"The model {route.name!r} {text}{progress_text}{detail_text}", route.progress, wait_s)
    if code == "model_failed" and route.backend == LITERT_LM:
        code = "LITERT_INIT_FAILED"
    is_remote_down = route.state == ModelState.FAILED and route.remote_probe is not None and wait_s is not None
    error_class = RemoteDownError if is_remote_down else RoundhouseError
    message = f"The model {route.name!r} {text}{detail_text}"
    return error_class(code, message, param="model", retry_after_s=wait_s, model=route.name)


def reason_of(route: ModelRoute, *, is_for_admin: bool = False) -> str | None:
    """Return why a model is not loaded: its last error in plain words, without network addresses and file paths of the
    server, or else the reason of its state, also without them.

    None: it is loaded, or no reason is known. `is_for_admin`: with file paths, and with the engine's own words; the
    error has no addresses even then.
    """
    if route.state == ModelState.LOADED:
        return None
    if is_for_admin:
        error = route.full_error or route.last_error
        return hide_addresses(error) if error else route.reason or None
    if not route.last_error:
        return hide_paths(hide_addresses(route.reason)) if route.reason else None
    # An older controller's error has the engine's log on further lines.
    return hide_paths(hide_addresses(route.last_error.strip().partition("\n")[0]))


def room_wait(route: ModelRoute) -> str | None:
    """Return which room a model waits for before its load begins, as a text; None: it is not in the state `loading`, or
    waits for none."""
    return route.reason if route.state == ModelState.LOADING else None


def is_worth_waiting(route: ModelRoute) -> bool:
    """Return whether a request to a model that is not loaded should wait: the model is `autoload` and not failed.

    Whether the model is loaded is not checked, and no load is asked for.
    """
    return route.autoload and route.state != ModelState.FAILED


def not_loaded_in_time(name: str, limit_s: float, route: ModelRoute | None) -> LoadingError:
    """Return, without raising it, the error for a request that waited `limit_s` seconds for a load of the model `name`.

    `route`: the model in the present table, of which the progress is taken, and the room that it waits for; None: the
    model has left the table.
    """
    reason = room_wait(route) if route is not None else None
    message = f"The model {name!r} was not loaded within {limit_s:g} s{f': {reason}' if reason else ''}."
    return LoadingError(message, route.progress if route is not None else None)


def no_longer_loading(route: ModelRoute) -> RoundhouseError:
    """Return, without raising it, the error `model_unloading` for a request that waited for the load of a model.

    Use it where the model is unloaded again, or its load was given up, and nothing is going to load it.
    """
    text = f"The model {route.name!r} was unloaded while the request waited for it."
    return RoundhouseError("model_unloading", text, param="model")


LONGEST_REASON = 200
"""Characters of a model's error that are told."""


class Degradation(NamedTuple):
    """A part that does not work, and why, without paths and addresses of the server: everybody may read it.

    `part` is `controller`, `gateway`, `retrieval`, `certificate`, `clock`, `retrieval's clock`, `model NAME`,
    `replica NAME`, or `models` for those that are not named; `reason` is a short text.
    """

    part: str
    reason: str


class Surroundings(NamedTuple):
    """What the gateway knows of the parts around it, at the time of one question about its health. `models` None: no
    routing table was received yet."""

    link: str
    """The link to the controller: `connected`, `lost`, `refused` or `never`."""
    retrieval: str
    """`off`, or as `ProgramProbe.result`."""
    models: Iterable[ModelRoute] | None
    """Models of the routing table in force; None: no table was received yet."""
    open_circuits: Iterable[str]
    """Names of the replicas whose circuit breaker is open."""
    is_certificate_broken: bool
    """Whether the latest files of the TLS certificate cannot be used, so that the previous certificate is served."""
    refusal: str | None = None
    """Why the controller refuses this gateway, while `link` is `refused`."""
    refused_gateways: tuple[str, ...] = ()
    """A sentence for each other gateway that the controller refuses, while this one is taken."""
    clock_hold: str | None = None
    """Why the gateway deletes nothing by the wall clock; None: it believes the clock."""
    retrieval_notice: str | None = None
    """What retrieval says of itself for operators, such as that it does not believe its clock (`ProgramProbe.notice`);
    None: nothing."""


def list_degradations(surroundings: Surroundings) -> list[Degradation]:
    """Return the parts that do not work, in the order controller, gateway, retrieval, certificate, clocks, models,
    replicas; empty if every part works.

    The controller counts as a part that does not work before the first routing table, and while its link is lost or it
    refuses this gateway; `gateway` are other gateways that it refuses, which somebody may take for working ones. Of
    the models only failed ones are returned, in the table's order; of the replicas those with an open circuit breaker,
    sorted by name.
    """
    found = []
    if surroundings.refusal is not None:
        found.append(Degradation("controller", hide_addresses(surroundings.refusal)))
    elif surroundings.models is None:
        found.append(Degradation("controller", "No routing table was received yet."))
    elif surroundings.link == "lost":
        found.append(Degradation("controller", "The link is lost: requests go on by the last routing table."))
    found += [Degradation("gateway", hide_addresses(each)) for each in surroundings.refused_gateways]
    if surroundings.retrieval == "down":
        found.append(Degradation("retrieval", "It does not answer: documents and searches are unavailable."))
    if surroundings.is_certificate_broken:
        found.append(Degradation("certificate", "Its files cannot be used: the previous certificate is served."))
    if surroundings.clock_hold is not None:
        found.append(Degradation("clock", surroundings.clock_hold))
    if surroundings.retrieval_notice is not None:
        found.append(Degradation("retrieval's clock", surroundings.retrieval_notice))
    failed = [route for route in surroundings.models or () if route.state == ModelState.FAILED]
    found += [
        Degradation(f"model {route.name}", hide_secrets_of_host(route.last_error) if route.last_error else "It failed.")
        for route in failed
    ]
    broken = "Its connections fail: the circuit breaker is open."
    found += [Degradation(f"replica {replica}", broken) for replica in sorted(surroundings.open_circuits)]
    return found


def hide_secrets_of_host(text: str) -> str:
    """Return a text of the controller as everybody may read it: its first line, with `[path]` and `[address]` in place
    of file paths and network addresses, cut to `LONGEST_REASON` (200) characters. Empty for an empty text."""
    return hide_addresses(hide_paths(next(iter(text.splitlines()), "")))[:LONGEST_REASON]
