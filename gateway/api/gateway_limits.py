"""GET /v1/limits: what this gateway takes and keeps, for clients that tell their users before it refuses something."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from gateway.api.declare import INGRESS_CODES, codes_paragraph, error_responses
from gateway.ingress.route_access import require_access
from gateway.settings import MIB, GatewaySettings

_CODES = ("scope_required", *INGRESS_CODES)


class Limits(BaseModel):
    """The limits of a gateway, the same for every caller."""

    object: Literal["limits"] = "limits"
    max_body_bytes: int = Field(
        description="Largest body of a request, and most bytes of a conversation or history that a response continues."
    )
    max_document_bytes: int | None = Field(description="Largest document; null: this gateway takes no documents.")
    retention_s: float = Field(
        description="Seconds that responses, conversations and chat completions are kept after they were made or last "
        "continued; 0: nothing is kept."
    )
    max_stored_bytes: int = Field(
        description="Most bytes of all that is kept, of all tenants; the least recently used gives way."
    )
    stream_ttl_s: float = Field(description="Seconds that a resumable stream is kept after its end.")
    max_inputs: int = Field(description="Most prompts, texts to embed or documents to rerank in one request.")
    max_choices: int = Field(description="Most answers to one prompt (`n`, `best_of`).")
    max_images: int = Field(description="Most images in the messages or items of one request.")
    max_tool_calls: int = Field(description="Most calls that the gateway runs after one round of a model.")

    @classmethod
    def of(cls, settings: GatewaySettings) -> Limits:
        """Return the limits that the settings set."""
        return cls(
            max_body_bytes=settings.max_body_bytes,
            max_document_bytes=settings.retrieval_max_file_mib * MIB if settings.retrieval else None,
            retention_s=settings.responses_retention_s,
            max_stored_bytes=settings.responses_max_mib * MIB,
            stream_ttl_s=settings.stream_ttl_s,
            max_inputs=settings.max_inputs,
            max_choices=settings.max_choices,
            max_images=settings.max_images,
            max_tool_calls=settings.max_tool_calls,
        )


def declare(app: FastAPI, limits: Limits) -> None:
    """Add `GET /v1/limits` to `app`, which answers `limits`."""

    @app.get(
        "/v1/limits",
        summary="Limits of this gateway",
        description="Extension of OpenAI's API. Rates are told in the headers of each answer, and what a model takes "
        "by `GET /v1/models`.\n\n" + codes_paragraph(_CODES),
        tags=["operations"],
        responses=error_responses(*_CODES),
    )
    @require_access("inference")
    async def get_limits() -> Limits:
        return limits
