"""The error codes that are about Roundhouse, its engines and their models: status 5xx."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

SERVICE_ERRORS: Final = (
    ErrorCode(
        "not_supported",
        501,
        "invalid_request_error",
        "The model's engine does not offer the API.",
        (
            "Choose a model whose `apis` in GET /v1/models contain the route.",
            "The message names the APIs that the model offers.",
        ),
        retry=False,
    ),
    ErrorCode(
        "internal_error",
        500,
        "server_error",
        "Roundhouse itself failed. Its log has the details under the request id.",
        ("Report the error with the request id.",),
    ),
    ErrorCode(
        "response_store_failed",
        500,
        "server_error",
        "The database of stored responses cannot be read or written; the log says why.",
        ("Send `store: false` and the whole conversation in `input`.", "Look at the disk of the gateway's state."),
    ),
    ErrorCode(
        "engine_error",
        502,
        "server_error",
        "The engine answered with an error, which is passed on with its status; 502 if the answer is unusable.",
        ("Read the message, which is the engine's own.",),
    ),
    ErrorCode(
        "engine_unreachable",
        502,
        "server_error",
        "No replica accepted the request: connections were refused, or broke before the first byte of an answer.",
        ("Try again: the controller restarts engines that ended.",),
        retry=True,
    ),
    ErrorCode(
        "engine_disconnected",
        502,
        "server_error",
        "The engine stopped before its answer was complete.",
        ("Try again: the part that was sent is lost.",),
        retry=True,
    ),
    ErrorCode(
        "kv_cache_exhausted",
        503,
        "server_error",
        "The engine's KV cache has no room for the request besides the other running requests.",
        (
            "Try again, and set `max_tokens` if the answer may be long: the gateway then reserves cache for the "
            "whole answer.",
            "Give the engine a larger context (`llama_server_n_ctx`), or the model fewer slots (`target_inflight`).",
        ),
        retry=True,
    ),
    ErrorCode(
        "controller_unavailable",
        503,
        "server_error",
        "The gateway has no routing table yet, the controller works with another gateway, or it does not answer.",
        (
            "Start the controller, or wait until it has made its first observation.",
            "Use the gateway that is connected: `roundhouse status` names its address.",
        ),
        retry=True,
    ),
    ErrorCode(
        "gateway_stopping",
        503,
        "server_error",
        "The gateway stopped before the answer was complete; its grace period was over.",
        ("Try again when the gateway is back.",),
        retry=True,
    ),
    ErrorCode(
        "gateway_restarted",
        503,
        "server_error",
        "The gateway was killed or crashed before the answer was complete. A resumable stream ends with this error.",
        ("Send the request again.",),
        retry=True,
    ),
    ErrorCode(
        "streams_full",
        503,
        "server_error",
        "Resumable streams take their maximum memory, and none has ended.",
        (
            "Try again later, or without `X-Conversation-Id`.",
            "Raise `ROUNDHOUSE_STREAMS_MAX_MIB`, or lower `ROUNDHOUSE_STREAM_RING_KIB`.",
        ),
        retry=True,
    ),
    ErrorCode(
        "model_not_loaded",
        503,
        "server_error",
        "The model is declared, but not loaded.",
        (
            "Load it: `roundhouse load NAME`, or POST /v1/admin/models/NAME/load.",
            "Set `enabled: true` or `autoload: true` in its definition.",
        ),
        retry=False,
    ),
    ErrorCode(
        "model_loading",
        503,
        "server_error",
        "The model is being loaded.",
        ("Wait as long as Retry-After says and try again.",),
        retry=True,
    ),
    ErrorCode(
        "model_unloading",
        503,
        "server_error",
        "The model is being unloaded and takes no new requests.",
        ("Wait until the model is unloaded, then load it again if you need it.",),
        retry=True,
    ),
    ErrorCode(
        "model_failed",
        503,
        "server_error",
        "The model's last load failed; the message says why.",
        (
            "`roundhouse status` shows the reason and the time of the next attempt.",
            "`roundhouse logs NAME` has the engine's log.",
            "Correct the model's definition, or load it with other values.",
        ),
        retry=False,
    ),
)
