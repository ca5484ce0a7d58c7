"""Which APIs an engine is asked for, by what a client asks for: the one table of what is passed through and what is
translated. What each backend speaks itself is its own to say (`Engine.apis` in `controller/engines/`); docs/models.md
shows both together. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.dialects.base import Dialect
from gateway.dialects.messages import MESSAGES
from gateway.dialects.native import NATIVE
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.plain import PLAIN
from gateway.dialects.responses import RESPONSES
from gateway.request import InferenceRequest


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve an API."""

    needs: str
    """What the engine must offer, as `ModelRoute.apis` names it."""
    dialect: Dialect
    target: str | None = None
    """The engine's path; None: as the client asked."""


def _spoken(path: str, dialect: Dialect) -> Way:
    """The engine speaks it itself."""
    return Way(path, dialect)


def _over(engine_path: str, dialect: Dialect) -> Way:
    """The engine speaks something else, into which it is translated."""
    return Way(engine_path, dialect, engine_path)


WAYS: Final[Mapping[str, tuple[Way, ...]]] = {
    "/v1/chat/completions": (_spoken("/v1/chat/completions", CHAT),),
    "/v1/completions": (_spoken("/v1/completions", COMPLETIONS),),
    "/v1/responses": (_spoken("/v1/responses", RESPONSES),),
    "/v1/messages": (_spoken("/v1/messages", MESSAGES),),
    "/v1/messages/count_tokens": (_spoken("/v1/messages/count_tokens", MESSAGES),),
    "/v1/embeddings": (_spoken("/v1/embeddings", PLAIN),),
    "/v1/rerank": (_spoken("/v1/rerank", PLAIN),),
    "/tokenize": (_spoken("/tokenize", PLAIN),),
    "/detokenize": (_spoken("/detokenize", PLAIN),),
    "/apply-template": (_spoken("/apply-template", PLAIN),),
    "/infill": (_spoken("/infill", NATIVE),),
    "/props": (_spoken("/props", PLAIN),),
    "/slots": (_spoken("/slots", PLAIN),),
    "/slots/{id}": (_spoken("/slots", PLAIN),),
    "/lora-adapters": (_spoken("/lora-adapters", PLAIN),),
}
"""By a path of the gateway, the ways to serve it, the better one first. All of a path have one family's errors."""


def way_for(path: str, request: InferenceRequest, route: ModelRoute) -> Way:
    """The first way that the model's engine offers and that can do what is asked for.

    An engine that lists nothing may speak anything. Where none of the ways can do it all, the last one that the engine
    offers is left to refuse.

    Raises:
        RoundhouseError: `not_supported`.
    """
    apis = route.apis
    offered = None
    for way in WAYS[path]:
        if not apis or way.needs in apis:
            offered = way
            if way.dialect.takes(request):
                break
    if offered is None:
        listed = ", ".join(offered_paths(route))
        message = f"The engine of {route.name!r} does not offer {path}; the model has {listed}."
        raise RoundhouseError("not_supported", message, param="model")
    return offered


def offers(path: str, route: ModelRoute) -> bool:
    """Whether some way serves the path for the model, as far as the engine tells."""
    return any(way.needs in route.apis for way in WAYS[path])


def offered_paths(route: ModelRoute) -> list[str]:
    """The paths that the gateway serves for the model; empty: the engine tells nothing."""
    return [path for path in WAYS if offers(path, route)]
