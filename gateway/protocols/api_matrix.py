"""The table of which engine API serves which path of the gateway, passed through or translated. Pure.

Each backend declares the APIs that it offers (`Engine.list_apis` in `controller/engines/`); docs/models.md shows both
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.chat.tool_forms import CUSTOM_TOOLS, FUNCTIONS
from gateway.protocols.common.bodies import LLAMA_SERVER, OPENAI_REMOTE, VLLM_BACKENDS
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.completions import COMPLETIONS_VIA_CHAT
from gateway.protocols.embeddings import EMBEDDINGS
from gateway.protocols.llama_native import NATIVE, PROPS, SLOTS
from gateway.protocols.rerank import RERANK, RERANK_V2
from gateway.protocols.responses.via_chat import COMPACTION_VIA_CHAT, RESPONSES_COUNT, RESPONSES_VIA_CHAT


@dataclass(frozen=True, slots=True)
class ServingOption:
    """One way to serve a path of the gateway: an API of the engine, and the dialect that passes requests through to it
    or translates them. `target`: path to ask the engine for; None: that of the client. A constant entry of
    `SERVING_OPTIONS`."""

    required_api: str
    """API that the engine must offer, as named in `ModelRoute.apis`."""
    dialect: Dialect
    target: str | None = None
    """Path to ask the engine for; None: the path that the client asked for."""
    flawed_backends: tuple[str, ...] = ()
    """Backends whose implementation ignores parts of a request or answers in another form than the family's. For them,
    any other option is preferred."""

    def takes_files(self, route: ModelRoute) -> bool:
        """Whether the engine reads files in requests itself: True for a remote model whose API is passed through."""
        return route.backend == OPENAI_REMOTE and self.target is None


def _passthrough(path: str, dialect: Dialect, *, flawed_backends: tuple[str, ...] = ()) -> ServingOption:
    """Return the option for engines that serve the path themselves."""
    return ServingOption(path, dialect, flawed_backends=flawed_backends)


def _translation(engine_path: str, dialect: Dialect) -> ServingOption:
    """Return the option that translates requests into the engine's API at `engine_path`. Also for another name of a
    path that engines have, as `/rerank` is one: then `dialect` changes nothing."""
    return ServingOption(engine_path, dialect, engine_path)


def _chat(path: str) -> tuple[ServingOption, ...]:
    """Return the options for chat completions: as they are, or with tools of other forms."""
    return tuple([_passthrough(path, dialect) for dialect in (CHAT, CUSTOM_TOOLS, FUNCTIONS)])


_MESSAGES_PATH: Final = "/v1/messages/"
_FLAWED_MESSAGES: Final = (LLAMA_SERVER, *VLLM_BACKENDS)
"""Backends with flaws in `/v1/messages`. llama-server ignores named tool choices, `none`, structured output, documents
and the order of tool results, never reports `stop_sequence`, and starts thinking and tool call blocks without a
required field. vLLM ignores `thinking` and cached tokens, and shares the last two flaws (according to its source)."""

SERVING_OPTIONS: Final[Mapping[str, tuple[ServingOption, ...]]] = {
    "/v1/chat/completions": _chat("/v1/chat/completions"),
    "/v1/chat/completions/input_tokens": _chat("/v1/chat/completions/input_tokens"),
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
    "/props": (_passthrough("/props", PROPS),),
    "/slots": (_passthrough("/slots", JSON_DIALECT),),
    "/slots/{id}": (_passthrough("/slots", SLOTS),),
    "/lora-adapters": (_passthrough("/lora-adapters", PROPS),),
}
"""Path of the gateway to the options that serve it, best first. All options of a path answer errors in the same
form."""


def serving_option(path: str, request: InferenceRequest, route: ModelRoute) -> ServingOption:
    """Return the first option for `path`, a key of `SERVING_OPTIONS`, that the model's engine offers, that supports the
    whole request, and whose implementation in the engine is not flawed (`flawed_backends`).

    If there is none, return the last option that the engine offers: it is served though flawed, and its dialect's
    checks refuse what it does not support. An engine that lists no APIs is assumed to offer all.

    Raises:
        RoundhouseError: `not_supported`: the engine offers none of the options.
        KeyError: `path` is no path of `SERVING_OPTIONS`.
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


def continues_answers(route: ModelRoute) -> bool:
    """Whether a translated request whose last turn is a text of the model gets the continuation of that text. False
    also for a remote model, of which that is not known."""
    return route.backend == LLAMA_SERVER or route.backend in VLLM_BACKENDS


def offers_path(path: str, route: ModelRoute) -> bool:
    """Whether the engine lists an API that can serve `path`. False for an engine that lists none. Raises KeyError if
    `path` is no key of `SERVING_OPTIONS`."""
    return any(option.required_api in route.apis for option in SERVING_OPTIONS[path])


def offered_paths(route: ModelRoute) -> list[str]:
    """Return the paths that the gateway serves for the model, in the order of `SERVING_OPTIONS`; empty if the engine
    lists no APIs, although requests are tried then (`serving_option`)."""
    return [path for path in SERVING_OPTIONS if offers_path(path, route)]


def error_body(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """Return the JSON of `error`, with `request_id`, in the form of the path's API family: Anthropic's for
    `/v1/messages` and paths below it, else Roundhouse's envelope, which is OpenAI's form. Any `path` is accepted; it
    must not have a query."""
    if f"{path}/".startswith(_MESSAGES_PATH):
        return MESSAGES.error_body(error, request_id)
    return error.json_bytes(request_id)
