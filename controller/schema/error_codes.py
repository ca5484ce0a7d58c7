"""The table of every error code of Roundhouse.

The table is the contract: `docs/errors.md` is tested against it, and the gateway and the controller answer with
nothing that is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """What a code always means.

    `status` is the HTTP status; `type` the OpenAI error type; `retry` tells a client whether the same request may
    succeed later: True adds `Retry-After`, False adds `x-should-retry: false`, None says nothing.
    """

    code: str
    status: int
    type: str
    meaning: str
    next_steps: tuple[str, ...]
    retry: bool | None = None


REQUEST_ERRORS: Final = (
    ErrorCode(
        "invalid_json",
        400,
        "invalid_request_error",
        "The body is not JSON, or not a JSON object.",
        ("Send a JSON object; the message names the place where reading it failed.",),
    ),
    ErrorCode(
        "invalid_request",
        400,
        "invalid_request_error",
        "A field is missing or has the wrong type; `param` names it.",
        ("Correct the field that `param` names.",),
    ),
    ErrorCode(
        "https_required",
        400,
        "invalid_request_error",
        "The gateway serves HTTPS, and the request came as plain HTTP.",
        ("Ask at an address that begins with `https://`.",),
        retry=False,
    ),
    ErrorCode(
        "invalid_load_request",
        400,
        "invalid_request_error",
        "The load's values do not suit the model's backend, or the model's state; `param` names the field.",
        (
            "Correct the field that `param` names; `load_constraints` of the model says what it takes.",
            "Unload a loaded model before you load it with other values.",
        ),
        retry=False,
    ),
    ErrorCode(
        "thinking_unsupported",
        400,
        "invalid_request_error",
        "The model does not let a request choose whether it thinks.",
        ("Leave `thinking` out, or choose a model whose `capabilities.thinking_modes` has the value.",),
        retry=False,
    ),
    ErrorCode(
        "modality_unsupported",
        400,
        "invalid_request_error",
        "The request holds input of a kind that the model does not take, such as an image.",
        ("Leave it out, or choose a model whose `capabilities.modalities` has the kind.",),
        retry=False,
    ),
    ErrorCode(
        "multi_turn_unsupported",
        400,
        "invalid_request_error",
        "The model takes one turn only, and the request holds a conversation.",
        ("Send one user message, or choose a model whose `capabilities.multi_turn` is true.",),
        retry=False,
    ),
    ErrorCode(
        "tools_unsupported",
        400,
        "invalid_request_error",
        "The model does not call tools.",
        ("Leave `tools` out, or choose a model whose `capabilities.tools` is true.",),
        retry=False,
    ),
    ErrorCode(
        "structured_output_unsupported",
        400,
        "invalid_request_error",
        "The model's engine has no grammar, so it cannot hold its answers to JSON or to a schema.",
        ("Ask for plain text, or choose a model whose `capabilities.structured_output` is true.",),
        retry=False,
    ),
    ErrorCode(
        "logprobs_unsupported",
        400,
        "invalid_request_error",
        "The model's engine does not tell the probabilities of tokens.",
        ("Leave `logprobs` out, or choose a model whose `capabilities.logprobs` is true.",),
        retry=False,
    ),
    ErrorCode(
        "dimensions_unsupported",
        400,
        "invalid_request_error",
        "The model's embeddings cannot be shortened to the `dimensions` asked for.",
        (
            "Leave `dimensions` out; the message names the model's own.",
            "Declare `matryoshka: true` if the model was trained for shorter embeddings.",
        ),
        retry=False,
    ),
    ErrorCode(
        "context_length_exceeded",
        400,
        "invalid_request_error",
        "The prompt, or the prompt with the answer that is asked for, has more tokens than the model's context.",
        (
            "Shorten the prompt; the message says how many tokens it has and how many the model takes.",
            "Choose a model with more context: `context_length` in `GET /v1/models`.",
        ),
        retry=False,
    ),
    ErrorCode(
        "previous_response_not_found",
        400,
        "invalid_request_error",
        "The response that `previous_response_id` names, or one before it, is not stored for this tenant.",
        ("Send the whole conversation in `input`.", "Store what is to be continued: `store` must not be false."),
        retry=False,
    ),
    ErrorCode(
        "conversation_locked",
        400,
        "invalid_request_error",
        "A response is being made in the conversation, and only one at a time may add to it.",
        ("Wait until the response is over, then send the request again.",),
        retry=True,
    ),
    ErrorCode(
        "file_unreadable",
        400,
        "invalid_request_error",
        "A file of the request has no text that can be read; the message says why.",
        ("Send its text instead, or a PDF that is not encrypted and holds text.",),
        retry=False,
    ),
    ErrorCode(
        "websocket_connection_limit_reached",
        400,
        "invalid_request_error",
        "A WebSocket was open for as long as one may be, an hour.",
        ("Open another, and go on there; what is stored can be continued.",),
    ),
    ErrorCode(
        "invalid_api_key",
        401,
        "authentication_error",
        "Keys are declared, and the request carries none that is valid: none at all, an unknown one, or one that has "
        "expired.",
        (
            "Send `Authorization: Bearer SECRET` or `x-api-key: SECRET`.",
            "`roundhouse key new NAME` makes a key.",
        ),
        retry=False,
    ),
    ErrorCode(
        "invalid_gateway_token",
        401,
        "authentication_error",
        "The controller listens on a port, and the request to it does not show the token of its gateways.",
        (
            "Set ROUNDHOUSE_GATEWAY_TOKEN_FILE to the file that the controller has its token in.",
            "Or ask a gateway, at its own address.",
        ),
        retry=False,
    ),
    ErrorCode(
        "forbidden_host",
        403,
        "permission_error",
        "Without keys the gateway answers only requests whose Host header names this machine.",
        ("Use http://127.0.0.1 or http://localhost.", "To serve other names, set ROUNDHOUSE_ALLOWED_HOSTS."),
        retry=False,
    ),
    ErrorCode(
        "forbidden_origin",
        403,
        "permission_error",
        "Without keys the gateway refuses requests sent by a web page of another origin.",
        ("To allow a page, name its host in ROUNDHOUSE_ALLOWED_HOSTS.",),
        retry=False,
    ),
    ErrorCode(
        "keys_required",
        403,
        "permission_error",
        "No keys are declared, and the gateway listens on an address that is not loopback: nobody may use it.",
        (
            "Declare a key: `roundhouse key new NAME` prints the lines.",
            "Or listen on 127.0.0.1, or set ROUNDHOUSE_OPEN=1 if everybody who reaches the address may use it.",
        ),
        retry=False,
    ),
    ErrorCode(
        "scope_required",
        403,
        "permission_error",
        "The key is valid and lacks the scope that this route needs.",
        ("Use a key whose `scopes` hold the one that the message names.",),
        retry=False,
    ),
    ErrorCode(
        "admin_closed",
        403,
        "permission_error",
        "No keys are declared, and requests without keys may not use admin routes of this gateway.",
        (
            "Declare a key with the scope `admin`: `roundhouse key new NAME` prints the lines.",
            "Or set ROUNDHOUSE_OPEN_ADMIN=1 if everybody who reaches the gateway may administer it.",
        ),
        retry=False,
    ),
    ErrorCode(
        "admin_not_here",
        403,
        "permission_error",
        "The gateway takes no admin requests at the address at which this one arrived.",
        ("Ask at an address that ROUNDHOUSE_ADMIN_HOST of the gateway names.",),
        retry=False,
    ),
    ErrorCode(
        "model_not_allowed",
        403,
        "permission_error",
        "The key is valid and is not for this model.",
        ("GET /v1/models with this key lists the models that it is for.",),
        retry=False,
    ),
    ErrorCode(
        "route_disabled",
        403,
        "permission_error",
        "The route changes or reveals the inner state of an engine, and such routes are off.",
        ("Set ROUNDHOUSE_ENGINE_STATE_ROUTES=1 on the gateway; with keys, they need the scope `admin`.",),
        retry=False,
    ),
    ErrorCode(
        "storage_disabled",
        403,
        "permission_error",
        "The gateway stores nothing, so it keeps no conversations.",
        ("Set ROUNDHOUSE_RESPONSES_RETENTION_H on the gateway.", "Send the whole conversation in `input`."),
        retry=False,
    ),
    ErrorCode(
        "completion_not_found",
        404,
        "invalid_request_error",
        "No chat completion of that id is stored for this tenant.",
        ("Completions are kept if `store` was true, for `ROUNDHOUSE_RESPONSES_RETENTION_H` hours.",),
        retry=False,
    ),
    ErrorCode(
        "conversation_not_found",
        404,
        "invalid_request_error",
        "No conversation of that id is stored for this tenant.",
        (
            "Conversations are kept for `ROUNDHOUSE_RESPONSES_RETENTION_H` hours after they were last continued.",
            "Make one with POST /v1/conversations.",
        ),
        retry=False,
    ),
    ErrorCode(
        "conversation_item_not_found",
        404,
        "invalid_request_error",
        "The conversation has no item of that id.",
        ("GET /v1/conversations/{conversation_id}/items lists the items.",),
        retry=False,
    ),
    ErrorCode(
        "response_not_found",
        404,
        "invalid_request_error",
        "No response of that id is stored for this tenant.",
        ("Responses are kept for `ROUNDHOUSE_RESPONSES_RETENTION_H` hours, unless `store` was false.",),
        retry=False,
    ),
    ErrorCode(
        "unknown_model",
        404,
        "invalid_request_error",
        "No model or alias of that name is declared.",
        ("GET /v1/models lists the names.", "Declare the model in desired-state/."),
        retry=False,
    ),
    ErrorCode(
        "unknown_replica",
        404,
        "invalid_request_error",
        "The model has no replica of that name, and no log of one.",
        ("GET /v1/admin/models names the replicas.",),
        retry=False,
    ),
    ErrorCode(
        "unknown_route",
        404,
        "invalid_request_error",
        "The gateway has no such path.",
        ("GET /openapi.json lists the paths.",),
        retry=False,
    ),
    ErrorCode(
        "method_not_allowed",
        405,
        "invalid_request_error",
        "The path exists, but not for this method.",
        ("GET /openapi.json lists the methods.",),
        retry=False,
    ),
    ErrorCode(
        "request_timeout",
        408,
        "timeout_error",
        "The client took too long to send its body, or the answer took longer than the request deadline.",
        ("Send the body faster, ask for fewer tokens, or raise ROUNDHOUSE_REQUEST_TIMEOUT_S.",),
    ),
    ErrorCode(
        "state_conflict",
        409,
        "invalid_request_error",
        "The model's state does not allow this now, or somebody else's statement overtook it.",
        ("GET /v1/admin/models shows the state; wait until the transition has ended.",),
    ),
    ErrorCode(
        "body_too_large",
        413,
        "invalid_request_error",
        "The body is larger than the gateway accepts.",
        ("Send less, or raise ROUNDHOUSE_MAX_BODY_MIB.",),
        retry=False,
    ),
    ErrorCode(
        "schema_violation",
        422,
        "invalid_request_error",
        "A field or a parameter of an admin request is unknown, missing, or of the wrong type; `param` names it.",
        ("Correct what `param` names; GET /openapi.json has the schema.",),
        retry=False,
    ),
    ErrorCode(
        "rate_limit_exceeded",
        429,
        "rate_limit_error",
        "The key, or the client where no keys are declared, has used up its requests or tokens per minute, or has too "
        "many requests at a time.",
        ("Wait as long as Retry-After says; `x-ratelimit-*` headers show what is left.",),
        retry=True,
    ),
    ErrorCode(
        "queue_full",
        429,
        "rate_limit_error",
        "Every slot of the model is taken, and as many requests wait as may.",
        (
            "Wait as long as Retry-After says and try again.",
            "Raise `queue_limit` of the model, or its `replicas`.",
        ),
        retry=True,
    ),
    ErrorCode(
        "headers_too_large",
        431,
        "invalid_request_error",
        "The request line or the headers are larger than the gateway accepts.",
        ("Send fewer or shorter headers, or raise ROUNDHOUSE_MAX_HEADER_KIB.",),
        retry=False,
    ),
)
"""The error codes that are about the request: status 4xx."""

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
"""The error codes that are about Roundhouse, its engines and their models: status 5xx."""

ERROR_CODES: Final[dict[str, ErrorCode]] = {entry.code: entry for entry in (*REQUEST_ERRORS, *SERVICE_ERRORS)}
