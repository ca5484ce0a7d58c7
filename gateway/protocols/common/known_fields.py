"""Decides which fields of a request are sent to a model that somebody else serves. Pure.

Clients add fields of their own: Codex's `client_metadata` names the installation and the path of the workspace. Our own
engines run where the gateway runs and get all fields. A remote gets the fields that the API family of its path defines
and those that the model's definition lists (`ModelRoute.extra_fields`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS

_GENERATION_FIELDS: Final = frozenset(
    {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty"}
    | {"seed", "stop", "n", "logit_bias", "user"}
)
CHAT_FIELDS: Final = _GENERATION_FIELDS | {
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format"),
    *("max_completion_tokens", "logprobs", "top_logprobs", "reasoning_effort", "verbosity", "modalities", "audio"),
    *("metadata", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store", "web_search_options"),
}
"""OpenAI's fields of chat completions, from the types of its package 3.52."""
COMPLETION_FIELDS: Final = _GENERATION_FIELDS | {"prompt", "suffix", "echo", "best_of", "logprobs"}
"""OpenAI's fields of completions."""
EMBEDDING_FIELDS: Final = frozenset({"model", "input", "dimensions", "encoding_format", "user"})
"""OpenAI's fields of embeddings."""
MESSAGE_FIELDS: Final = frozenset(
    {"model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p"}
    | {"tools", "tool_choice", "thinking", "output_config", "output_format", "metadata", "service_tier", "container"}
    | {"cache_control", "context_management", "compaction", "mcp_servers", "inference_geo", "speed", "thread"}
    | {"betas", "billing_policy", "diagnostics", "fallback_credit_token", "fallbacks", "user_profile_id"}
    | {"workspace_id"}
)
"""Anthropic's fields of messages, from the types of its package 2.12; `output_format` from those of earlier ones."""
RERANK_FIELDS: Final = frozenset(
    {"model", "query", "documents", "top_n", "return_documents", "rank_fields", "max_chunks_per_doc"}
    | {"max_tokens_per_doc", "priority", "truncation"}
)
"""Jina's and Cohere's fields of rankings."""


def drop_foreign_fields(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> Fields:
    """Return the fields of a request that the model's engine gets; the same object if all of them pass.

    `known_fields`: names that the path's API family defines, such as `CHAT_FIELDS`. All fields pass if
    `route.extra_fields` is None, which is so for engines that Roundhouse runs itself. Otherwise those pass that are in
    `known_fields` or `route.extra_fields`, and the one that switches thinking (`route.thinking_control`).
    """
    foreign_names = _foreign_names(fields, known_fields, route)
    return {name: fields[name] for name in fields if name not in foreign_names} if foreign_names else fields


def check_foreign_fields(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> None:
    """Refuse a field that constrains the answer's form if `drop_foreign_fields` would drop it.

    A field that is null, false or an empty string constrains nothing, and passes.

    Raises:
        RoundhouseError: `structured_output_unsupported`; `param` is the field.
    """
    foreign_names = _foreign_names(fields, known_fields, route)
    for name in CONSTRAINT_FIELDS:
        if name in foreign_names and fields[name] not in (None, "", False):
            message = (
                f"The model {route.name!r} is served elsewhere, and `{name}` is no field of this API: use "
                f"`response_format`, or list the field in the model's `remote_fields`."
            )
            raise RoundhouseError("structured_output_unsupported", message, param=name)


def _foreign_names(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> Collection[str]:
    if route.extra_fields is None:
        return ()
    return [
        name
        for name in fields
        if name not in known_fields and name not in route.extra_fields and name != route.thinking_control
    ]
