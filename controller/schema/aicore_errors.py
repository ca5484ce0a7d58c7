"""The error codes of models with the role `aicore`, as a phone's server for Android's AICore has them, and of
LiteRT-LM. Their names are in upper case there, and so here."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

_TYPE: Final = "aicore_unavailable"

AICORE_ERRORS: Final = (
    ErrorCode(
        "AICORE_DOWNLOADABLE",
        503,
        _TYPE,
        "AICore's model is not on the device; it can be downloaded.",
        ("Download the model on the device.", "Try again."),
    ),
    ErrorCode(
        "AICORE_DOWNLOADING",
        425,
        _TYPE,
        "The device downloads the model of AICore.",
        ("Wait until `GET /v1/aicore/status` has the status `available`.", "Try again."),
        retry=True,
    ),
    ErrorCode(
        "AICORE_UNAVAILABLE",
        503,
        _TYPE,
        "No model has the role `aicore`, or AICore is not available on its device.",
        ("Declare a model with `role: aicore`, typically an `openai_remote` at a phone.", "Use another model."),
    ),
    ErrorCode(
        "AICORE_BACKGROUND_BLOCKED",
        403,
        _TYPE,
        "Android put the app in the background; AICore serves foreground apps alone.",
        ("Bring the app to the foreground on the device.", "Try again."),
    ),
    ErrorCode(
        "AICORE_RUNTIME_ERROR",
        500,
        _TYPE,
        "AICore failed on the request.",
        ("Try again.", "The device's log has the reason."),
    ),
    ErrorCode(
        "AICORE_UNKNOWN",
        503,
        _TYPE,
        "AICore has an unknown status, or its device does not answer.",
        ("Look at `GET /v1/aicore/status?probe=all`.", "Look at the device."),
        retry=True,
    ),
    ErrorCode(
        "LITERT_INIT_FAILED",
        503,
        "server_error",
        "LiteRT-LM could not be started with the model.",
        (
            "Read the reason in the message, and the engine's log (`roundhouse logs MODEL`).",
            "Check the model file, and whether it was made for this processor.",
        ),
        retry=False,
    ),
)
