"""Which APIs an engine is asked for, by what a client asks for: the one table of what is passed through and what is
translated. What each backend speaks itself is its own to say (`Engine.list_apis` in `controller/engines/`);
docs/models.md shows both together. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.completions.via_chat import COMPLETIONS_VIA_CHAT
from gateway.protocols.embeddings.dialect import EMBEDDINGS
from gateway.protocols.llama_native.dialect import NATIVE
from gateway.protocols.rerank.dialect import RERANK, RERANK_V2
from gateway.protocols.responses.via_chat import COMPACTION_VIA_CHAT, RESPONSES_COUNT, RESPONSES_VIA_CHAT

_REMOTE: Final = "openai_remote"


@dataclass(frozen=True, slots=True)
class ServingOption:
    """One way to serve an API."""

    required_api: str
    """What the engine must offer, as `ModelRoute.apis` names it."""
    dialect: Dialect
    target: str | None = None
    """The engine's path; None: as the client asked."""
    flawed_backends: tuple[str, ...] = ()
    """Backends whose engines lose a part of what is asked for, or answer in another form than the family's: for them
    any other way is better."""

    def takes_files(self, route: ModelRoute) -> bool:
        """Whether files in a request are the engine's to read: a remote's, which is asked as the client asked."""
        return route.backend == _REMOTE and self.target is None


def _passthrough(path: str, dialect: Dialect, *, flawed_backends: tuple[str, ...] = ()) -> ServingOption:
    """The engine speaks it itself."""
    return ServingOption(path, dialect, flawed_backends=flawed_backends)


def _translation(engine_path: str, dialect: Dialect) -> ServingOption:
    """The engine speaks something else, into which it is translated."""
    return ServingOption(engine_path, dialect, engine_path)


_FLAWED_MESSAGES: Final = ("llama_server", "vllm_serve", "vllm")
"""llama-server's forget named tool choices, `none`, structured output, documents and the order of tool results, never
say `stop_sequence`, and begin thoughts and calls with blocks that lack a field; vLLM's forget `thinking` and cached
tokens, and share the last two (by its source)."""

SERVING_OPTIONS: Final[Mapping[str, tuple[ServingOption, ...]]] = {
    "/v1/chat/completions": (_passthrough("/v1/chat/completions", CHAT),),
    "/v1/chat/completions/input_tokens": (_passthrough("/v1/chat/completions/input_tokens", CHAT),),
    "/v1/completions": (
        _passthrough("/v1/completions", COMPLETIONS),
        _translation("/v1/chat/completions", COMPLETIONS_VIA_CHAT),
    ),
    "/v1/responses": (_translation("/v1/chat/completions", RESPONSES_VIA_CHAT),),
    "/v1/responses/compact": (_translation("/v1/chat/completions", COMPACTION_VIA_CHAT),),
    "/v1/responses/input_tokens": (_translation("/v1/chat/completions/input_tokens", RESPONSES_COUNT),),
    "/v1/messages": (
        _passthrough("/v1/messages", MESSAGES, flawed_backends=_FLAWED_MESSAGES),
        _translation("/v1/chat/completions", MESSAGES_VIA_CHAT),
    ),
    "/v1/messages/count_tokens": (
        _passthrough("/v1/messages/count_tokens", MESSAGES, flawed_backends=_FLAWED_MESSAGES),
        _translation("/v1/chat/completions/input_tokens", MESSAGES_COUNTED_VIA_CHAT),
    ),
    "/v1/embeddings": (_passthrough("/v1/embeddings", EMBEDDINGS),),
    "/v1/rerank": (_passthrough("/v1/rerank", RERANK),),
    "/rerank": (_translation("/v1/rerank", RERANK),),
    "/v2/rerank": (_translation("/v1/rerank", RERANK_V2),),
    "/tokenize": (_passthrough("/tokenize", JSON_DIALECT),),
    "/detokenize": (_passthrough("/detokenize", JSON_DIALECT),),
    "/apply-template": (_passthrough("/apply-template", JSON_DIALECT),),
    "/infill": (_passthrough("/infill", NATIVE),),
    "/completion": (_passthrough("/completion", NATIVE),),
    "/embedding": (_passthrough("/embedding", JSON_DIALECT),),
    "/props": (_passthrough("/props", JSON_DIALECT),),
    "/slots": (_passthrough("/slots", JSON_DIALECT),),
    "/slots/{id}": (_passthrough("/slots", JSON_DIALECT),),
    "/lora-adapters": (_passthrough("/lora-adapters", JSON_DIALECT),),
}
"""By a path of the gateway, the ways to serve it, the better one first. All of a path have one family's errors."""


def serving_option(path: str, request: InferenceRequest, route: ModelRoute) -> ServingOption:
    """The first way that the model's engine offers and that can do what is asked for.

    An engine that lists nothing may speak anything. Where none of the ways can do it all, the last one that the engine
    offers is left to refuse.

    Raises:
        RoundhouseError: `not_supported`.
    """
    apis = route.apis
    selected_option = None
    for option in SERVING_OPTIONS[path]:
        if not apis or option.required_api in apis:
            selected_option = option
            if route.backend not in option.flawed_backends and option.dialect.can_serve(request):
                break
    if selected_option is None:
        path_list = ", ".join(offered_paths(route))
        message = f"The engine of {route.name!r} does not offer {path}; the model has {path_list}."
        raise RoundhouseError("not_supported", message, param="model")
    return selected_option


def offers_path(path: str, route: ModelRoute) -> bool:
    """Whether some way serves the path for the model, as far as the engine tells."""
    return any(option.required_api in route.apis for option in SERVING_OPTIONS[path])


def offered_paths(route: ModelRoute) -> list[str]:
    """The paths that the gateway serves for the model; empty: the engine tells nothing."""
    return [path for path in SERVING_OPTIONS if offers_path(path, route)]
