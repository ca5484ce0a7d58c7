"""The HTTP routes, one module per route group. `declare` puts inference routes into the OpenAPI document, `admin`
forwards `/v1/admin/*` to the controller, `schemas` describes bodies.
"""

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
from gateway.exchange.api_spec import ApiSpec


class InferenceGroup(Protocol):
    """A module of this folder that declares inference routes, which engines answer. See `INFERENCE_GROUPS`."""

    @property
    def APIS(self) -> tuple[ApiSpec, ...]:  # noqa: N802 - modules have it as a constant
        """The APIs of the routes; `InferenceDispatcher` serves them."""

    @property
    def declare(self) -> Callable[[FastAPI], None]:
        """Adds the routes to the OpenAPI document of an application; see `declare.declare_inference`."""


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
