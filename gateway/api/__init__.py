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
    """Interface of the modules of this package that declare inference routes: routes whose requests an engine answers.

    `INFERENCE_GROUPS` lists these modules.
    """

    @property
    def APIS(self) -> tuple[ApiSpec, ...]:  # noqa: N802 - modules have it as a constant
        """One declaration per route (path and method) of the module. The same ones must be given to
        `InferenceDispatcher`, which serves the routes' requests."""

    @property
    def declare(self) -> Callable[[FastAPI], None]:
        """Function that adds the module's routes to an application, so that its OpenAPI document has them and other
        methods on their paths get `method_not_allowed`. FastAPI does not serve their requests. Call it once per
        application."""


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
