"""How a request chooses a LoRA module of an engine that serves modules as models."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.lora_modules import route_to_module
from gateway.protocols.common.request import InferenceRequest, parse_request
from tests.fakes.fake_controller import route

MODEL = route("m", served_name="inner", lora_modules=("french", "terse"))


def _request(**fields: Any) -> InferenceRequest:
    return parse_request(json_bytes({"model": "m", "messages": [], **fields}), may_stream=True)


def test_the_module_s_name_is_the_engine_s_name_for_the_model() -> None:
    chosen = route_to_module(_request(lora="terse"), MODEL)
    assert chosen == MODEL.model_copy(update={"served_name": "terse"})
    assert MODEL.served_name == "inner"


def test_without_a_module_the_model_itself_answers() -> None:
    for model in (MODEL, route("m", lora_modules=())):
        assert route_to_module(_request(), model) is model
        assert route_to_module(_request(lora=None), model) is model


def test_an_engine_that_reads_the_field_itself_gets_any() -> None:
    own = route("m")
    for value in ("french", [{"id": 0, "scale": 1}], 3):
        assert route_to_module(_request(lora=value), own) is own


@pytest.mark.parametrize("value", ["", "inner", "m", "French", 0, False, ["french"], {"french": 1}, [{"id": 0}]])
def test_what_names_no_module_is_refused_with_those_there_are(value: Any) -> None:
    for model, words in ((MODEL, "one of french, terse."), (route("m", lora_modules=()), "has no LoRA modules.")):
        with pytest.raises(RoundhouseError) as caught:
            route_to_module(_request(lora=value), model)
        assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "lora")
        assert caught.value.message.endswith(words)
