"""The gateway's routes, one file per route group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from fastapi import FastAPI

from gateway.api import (
    chat,
    completions,
    embeddings,
    engine_state,
    llama_native,
    messages,
    props,
    rerank,
    responses,
    tokens,
)
from gateway.exchange.services import ApiSpec


class InferenceGroup(Protocol):
    """A module of this folder whose routes are answered by engines."""

    @property
    def APIS(self) -> tuple[ApiSpec, ...]:  # noqa: N802 - modules have it as a constant
        """How the gateway serves each route of the group."""

    @property
    def declare(self) -> Callable[[FastAPI], None]:
        """Adds the routes to the application's OpenAPI document."""


INFERENCE_GROUPS: Final[tuple[InferenceGroup, ...]] = (
    chat,
    completions,
    responses,
    messages,
    embeddings,
    rerank,
    tokens,
    llama_native,
    props,
    engine_state,
)
