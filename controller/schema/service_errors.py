"""The error codes that are about Roundhouse, its engines and their models: status 5xx."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

SERVICE_ERRORS: Final = (
    ErrorCode(
        "not_supported",
        501,
        "invalid_request_error",
        "The model's engine does not offer this API.",
        ("Choose a model whose `apis` in GET /v1/models name it.", "The message names what this one offers."),
        retry=False,
    ),
    ErrorCode(
        "internal_error",
        500,
        "server_error",
        "Roundhouse itself failed; its log has the details under the request id.",
        ("Report it with the request id.",),
    ),
    ErrorCode(
        "response_store_failed",
        500,
        "server_error",
        "The database of stored responses cannot be read or written; the gateway's log says why.",
        ("Send `store: false` and the whole conversation in `input`.", "Look at the disk of the gateway's state."),
    ),
    ErrorCode(
        "engine_error",
        502,
        "server_error",
        "The engine answered with an error of its own: its status and its message are passed on. 502 is for an answer "
        "that is none.",
        ("Read the message: it is the engine's.",),
    ),
    ErrorCode(
        "engine_unreachable",
        502,
        "server_error",
        "No replica of the model accepted the request: connections were refused or broke before a first byte.",
        ("Try again: the controller restarts engines that ended.",),
        retry=True,
    ),
    ErrorCode(
        "engine_disconnected",
        502,
        "server_error",
        "The engine ended in the middle of its answer.",
        ("Try again: the part that was sent is lost.",),
        retry=True,
    ),
    ErrorCode(
        "kv_cache_exhausted",
        503,
        "server_error",
        "The engine's KV cache has no room for the request beside the others that it serves.",
        (
            "Try again, with `max_tokens` where the answer may be long: what a request may take is kept free for it.",
            "Give the engine a larger context (`llama_server_n_ctx`), or the model fewer slots (`target_inflight`).",
        ),
        retry=True,
    ),
    ErrorCode(
        "controller_unavailable",
        503,
        "server_error",
        "The gateway has never heard from a controller, so it knows no models, or the controller does not answer.",
        ("Start the controller, or wait until it has made its first observation.",),
        retry=True,
    ),
    ErrorCode(
        "gateway_stopping",
        503,
        "server_error",
        "The gateway was stopped, and its grace for running requests ended before the answer was complete.",
        ("Try again when the gateway is back.",),
        retry=True,
    ),
    ErrorCode(
        "gateway_restarted",
        503,
        "server_error",
        "The gateway ended without a word (killed, or crashed) before the answer was complete: a resumable stream ends "
        "with this after all that was sent of it.",
        ("Send the request again.",),
        retry=True,
    ),
    ErrorCode(
        "streams_full",
        503,
        "server_error",
        "All resumable streams together take as much memory as they may, and none of them has ended.",
        (
            "Try again later, or without `X-Conversation-Id`.",
            "Allow more with `ROUNDHOUSE_STREAMS_MAX_MIB`, or less for each with `ROUNDHOUSE_STREAM_RING_KIB`.",
        ),
        retry=True,
    ),
    ErrorCode(
        "model_not_loaded",
        503,
        "server_error",
        "The model is declared and not loaded.",
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
        "The model is being unloaded: running requests finish, new ones are refused.",
        ("Wait until it is unloaded, then load it again if you need it.",),
        retry=True,
    ),
    ErrorCode(
        "model_failed",
        503,
        "server_error",
        "The model's last load failed; the message says why.",
        (
            "`roundhouse status` shows the reason and when it is tried again.",
            "`roundhouse logs NAME` has the engine's log.",
            "Correct the model's definition, or load it with other values.",
        ),
        retry=False,
    ),
)
