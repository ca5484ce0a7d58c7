"""Rules for load and unload requests: each becomes a new override, changes nothing, or is refused. Pure.

A refusal changes nothing. Source of the rules: seed 001 and DESIGN.md §4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from controller.config.messages import explain_errors
from controller.desired.resolve import with_params
from controller.engines import REPLICA_ENGINES
from controller.engines.load_fields import LoadValue
from controller.engines.load_request import find_wrong_backend
from controller.schema.errors import RoundhouseError
from controller.schema.override import Override
from controller.schema.status import ModelState
from controller.state import DesiredModel

LEAST_STEP_S = 1e-6
"""Minimum difference in seconds between the times of two statements about one model, so that they sort."""


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """What `decide_load` and `decide_unload` need to know of one model at the moment of a request: what is wanted of
    it, its fields as declared, its state, and the override in force (None: no operator's statement is)."""

    want: DesiredModel
    """What is wanted of the model now, with the override in force."""
    raw: Mapping[str, Any]
    """The model's fields as the files declare them."""
    state: ModelState
    override: Override | None
    """The override in force. None means that no operator's statement is in force."""

    def statement_time(self, now: float) -> float:
        """Return the Unix time for a new statement made at Unix time `now`: `now`, or 1 µs (`LEAST_STEP_S`) after the
        override in force if that is later, so that statements sort by time."""
        return now if self.override is None else max(now, self.override.at + LEAST_STEP_S)


def decide_load(
    standing: ModelStanding,
    params: Mapping[str, LoadValue],
    replicas: int | None,
    *,
    restart: bool,
    actor: str,
    now: float,
) -> Override | None:
    """Return the override of a load, for the caller to put into force. None means that nothing changes, because the
    model is loaded or loading already, and the request gives no values. Changes nothing itself.

    `params` are the backend's load fields from the request; `replicas` None means as declared. `restart` allows new
    values for a model that is loaded or loading, and always returns an override. A load of a model that autoload
    brought makes the load permanent. `actor` is who asks, and `now` is Unix time.

    Raises RoundhouseError: `invalid_load_request` for wrong fields, too many replicas, or values for a model that is
    loaded or loading without `restart` (`param` is the field); `state_conflict` while the model is being unloaded.
    """
    want = standing.want
    override_params = _checked_params(want, params)
    _check_replicas(want, replicas)
    if standing.state is ModelState.UNLOADING:
        raise RoundhouseError("state_conflict", f"The model {want.name!r} is being unloaded; load it afterwards.")
    if standing.state in (ModelState.LOADED, ModelState.LOADING) and not restart:
        if override_params or replicas is not None:
            field = next(iter(params), "replicas")
            message = (
                f"The model {want.name!r} is {standing.state}; other values need an unload first, or `restart=true` "
                "(`roundhouse load --restart`), which replaces its engines one at a time."
            )
            raise RoundhouseError("invalid_load_request", message, param=field)
        # An autoloaded model would be unloaded when idle; an operator's load keeps it.
        if want.statement.kind != "autoload":
            return None
    return Override.from_statement(
        standing.raw,
        model=want.name,
        action="load",
        at=standing.statement_time(now),
        actor=actor,
        replicas=replicas,
        params=override_params,
    )


def decide_unload(standing: ModelStanding, *, hold: bool, actor: str, now: float) -> Override | None:
    """Return the override of an unload, for the caller to put into force. None means that nothing changes: the same
    unload is in force, or the model is unloaded or unloading already and no request would load it again. `hold`:
    whether the unload also keeps requests from loading an autoload model again. `now` is Unix time. Never raises."""
    want, override = standing.want, standing.override
    if override is not None and override.action == "unload" and override.hold == hold and want.replicas == 0:
        return None
    if want.replicas == 0 and not want.declared_definition.autoload:
        return None
    return Override.from_statement(
        standing.raw, model=want.name, action="unload", at=standing.statement_time(now), actor=actor, hold=hold
    )


def _checked_params(want: DesiredModel, params: Mapping[str, LoadValue]) -> dict[str, Any]:
    """Return the load's parameters as definition fields. Raises RoundhouseError `invalid_load_request`."""
    engine = REPLICA_ENGINES[want.backend]
    backend_fault = find_wrong_backend(engine, params)
    fault = backend_fault or next(iter(engine.load_faults(params)), None)
    if fault is not None:
        raise RoundhouseError("invalid_load_request", f"`{fault.field}` {fault.message}.", param=fault.field)
    override_params = engine.load_override(params)
    try:
        with_params(want.declared_definition, override_params)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        field = str(first_error["loc"][0]) if first_error["loc"] else next(iter(params))
        message = f"`{field}` {explain_errors(first_error)}, with what the definition of {want.name!r} says."
        raise RoundhouseError("invalid_load_request", message, param=field) from None
    return override_params


def _check_replicas(want: DesiredModel, replicas: int | None) -> None:
    max_replicas = want.declared_definition.replica_max or want.declared_definition.replicas
    if replicas is not None and replicas > max_replicas:
        message = f"`replicas` must be at most {max_replicas}, the model's replica_max; is {replicas}."
        raise RoundhouseError("invalid_load_request", message, param="replicas")
