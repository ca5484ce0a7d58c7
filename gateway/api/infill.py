"""POST /infill: llama.cpp's own completion between a prefix and a suffix."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything
from gateway.exchange.services import ApiSpec

APIS = (ApiSpec("/infill", streams=True, is_native=True, scope="inference"),)


def declare(app: FastAPI) -> None:
    """Declare the route."""
    text = "Text between `input_prefix` and `input_suffix`, for models that are made for it."
    declare_inference(app, APIS[0], request=Anything, answer=Anything, summary="Infill", text=text)
