"""What a request for embeddings may hold, and vectors that the gateway shortens."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.embeddings import EMBEDDINGS
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present

OWN = [3.0, 4.0, 12.0]
OTHER = [0.0, 0.0, 1.0]


def asked(**fields: Any) -> InferenceRequest:
    return parse_request(json.dumps({"model": "m", "input": "a", **fields}).encode(), may_stream=False)


def checked(of: ModelRoute, **fields: Any) -> InferenceRequest:
    request = asked(**fields)
    EMBEDDINGS.check_request(request, of)
    return request


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def answer(*vectors: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": number, "embedding": each} for number, each in enumerate(vectors)]
    return {"object": "list", "data": data, "model": "inner", "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def given(request: InferenceRequest, told: Any) -> Any:
    translate = present(EMBEDDINGS.get_body_converter(request))
    return json.loads(translate(json.dumps(told).encode()))


@pytest.mark.parametrize(
    "value", ["a", ["a", "b"], [1, 2], [[1, 2], [3]], ["a", [1], {"content": []}], [1, "a"], {"prompt_string": "a"}]
)
def test_inputs_of_every_kind_pass_as_they_are(value: Any) -> None:
    request = checked(route("m"), input=value, encoding_format="base64", user="u", own={"x": 1})
    assert EMBEDDINGS.engine_body(request, route("m"), as_stream=False) is request.raw
    assert EMBEDDINGS.get_body_converter(request) is None


def test_an_input_under_an_engines_own_name_passes() -> None:
    for name in ("messages", "content"):
        request = parse_request(json.dumps({"model": "m", name: []}).encode(), may_stream=False)
        EMBEDDINGS.check_request(request, route("m"))
        assert EMBEDDINGS.engine_body(request, route("m"), as_stream=False) is request.raw


def test_null_is_as_if_it_were_left_out() -> None:
    # llama-server answers 500 to an `encoding_format` of null.
    request = checked(route("m"), encoding_format=None, dimensions=None, user="u")
    body = json.loads(EMBEDDINGS.engine_body(request, route("m", served_name="inner"), as_stream=False))
    assert body == {"model": "inner", "input": "a", "user": "u"}
    assert EMBEDDINGS.get_body_converter(request) is None


def test_a_missing_input_is_refused() -> None:
    with pytest.raises(RoundhouseError, match="it is missing"):
        EMBEDDINGS.check_request(parse_request(b'{"model": "m"}', may_stream=False), route("m"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"input": value}, "input") for value in (None, "", list[Any](), dict[str, Any](), 5, True)),
        *(({"input": value}, "input[1]") for value in (["a", ""], ["a", None], [1, 2.5], [1, True], [[1], []])),
        ({"input": [[1], [2, 3.5]]}, "input[1][1]"),
        ({"input": [[1], [[2]]]}, "input[1][0]"),
        *(({"encoding_format": value}, "encoding_format") for value in ("int8", 3)),
        *(({"dimensions": value}, "dimensions") for value in (0, -1, True, 2.0, "2")),
    ],
)
def test_what_is_no_request_for_embeddings_is_refused_at_its_place(fields: dict[str, Any], param: str) -> None:
    error = error_of(lambda: checked(route("m", takes_dimensions=True), **fields))
    assert (error.entry.code, error.param) == ("invalid_request", param)
    assert f"`{param}`" in error.message


def test_dimensions_never_reach_an_engine_that_may_overlook_them() -> None:
    for fields in ({}, {"encoding_format": None}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        request = checked(route("m"), dimensions=2, **fields)
        body = json.loads(EMBEDDINGS.engine_body(request, route("m", served_name="inner"), as_stream=False))
        # Numbers are read ten times as fast from base64.
        assert body == {"model": "inner", "input": "a", "encoding_format": "base64"}


def test_dimensions_are_left_to_an_engine_that_knows_them() -> None:
    knows = route("m", takes_dimensions=True)
    request = checked(knows, dimensions=2)
    assert EMBEDDINGS.engine_body(request, knows, as_stream=False) is request.raw
    assert EMBEDDINGS.get_body_converter(request) is None


def test_what_is_declared_of_a_model_rules_and_a_remote_is_asked_in_the_clients_words() -> None:
    remote = route("m", takes_dimensions=True, shortens_embeddings=True)
    for encoding in ("float", "base64"):
        request = checked(remote, dimensions=2, encoding_format=encoding)
        body = json.loads(EMBEDDINGS.engine_body(request, remote, as_stream=False))
        assert body == {"model": "m", "input": "a", "encoding_format": encoding}
        assert given(request, answer(OWN, packed(OWN))) == answer([0.6, 0.8], packed([0.6, 0.8]))


def test_another_version_of_the_table_decides_anew() -> None:
    request = checked(route("m", shortens_embeddings=True), dimensions=2)
    EMBEDDINGS.check_request(request, route("m", takes_dimensions=True))
    assert EMBEDDINGS.get_body_converter(request) is None


def test_shorter_vectors_are_the_beginning_scaled_to_length_1() -> None:
    may = route("m", shortens_embeddings=True)
    told = answer(packed(OWN), packed(OTHER))
    as_base64 = checked(may, dimensions=2, encoding_format="base64")
    assert given(as_base64, told) == answer(packed([0.6, 0.8]), packed([0.0, 0.0]))
    for fields in ({}, {"encoding_format": None}, {"encoding_format": "float"}):
        as_floats = checked(may, dimensions=2, **fields)
        assert given(as_floats, told) == answer([0.6, 0.8], [0.0, 0.0])
        assert given(as_floats, answer(OWN, OTHER)) == answer([0.6, 0.8], [0.0, 0.0]), "no base64, though asked for it"


def test_fields_of_the_engines_own_stay() -> None:
    told = answer(packed(OWN)) | {"timings": {"x": 1}}
    item = told["data"][0]
    item |= {"encoding_format": "base64", "own": 1}  # as llama-server tells it
    may = route("m", shortens_embeddings=True)
    made = given(checked(may, dimensions=1, encoding_format="base64"), told)
    assert made["timings"] == {"x": 1}
    assert made["data"] == [item | {"embedding": packed([1.0])}]
    item.pop("encoding_format")
    assert given(checked(may, dimensions=1), told)["data"] == [item | {"embedding": [1.0]}]


@pytest.mark.parametrize("shortens", [True, False])
def test_the_models_own_length_is_not_touched(shortens: bool) -> None:
    own = route("m", shortens_embeddings=shortens)
    translate = present(EMBEDDINGS.get_body_converter(checked(own, dimensions=3, encoding_format="base64")))
    for told in (answer(OWN, [1, 2, 3]), answer(packed(OWN))):
        body = json.dumps(told, indent=3).encode()
        assert translate(body) is body
    assert given(checked(own, dimensions=3), answer(packed(OWN))) == answer(OWN)


@pytest.mark.parametrize(("shortens", "dimensions"), [(False, 2), (False, 4), (True, 4)])
@pytest.mark.parametrize("told", [answer(OWN), answer(packed(OWN))], ids=["float", "base64"])
def test_what_cannot_be_had_is_refused_and_names_the_models_own(shortens: bool, dimensions: int, told: Any) -> None:
    request = checked(route("m", shortens_embeddings=shortens), dimensions=dimensions)
    error = error_of(lambda: given(request, told))
    assert (error.entry.code, error.entry.status, error.param) == ("dimensions_unsupported", 400, "dimensions")
    own = "at most 3" if shortens else "3"
    assert error.message == f"`dimensions` is {dimensions}; the model 'm' gives embeddings of {own}."


@pytest.mark.parametrize(
    "told",
    [
        *([], {"data": []}, {"data": {}}, {"data": [3]}, {"data": [{}]}),
        *(
            {"data": [{"embedding": value}]}
            for value in (
                *([], [[1.0, 2.0, 3.0]], [1.0, None, 3.0], "%%%", "ü", "", packed([1.0, math.nan, 3.0])),
                *("%" + packed(OWN), base64.b64encode(b"12345").decode()),
            )
        ),
    ],
)
def test_what_is_no_answer_of_embeddings_is_the_engines_failure(told: Any) -> None:
    request = checked(route("m", shortens_embeddings=True), dimensions=2)
    assert error_of(lambda: given(request, told)).entry.code == "engine_disconnected"


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_json_or_holds_other_numbers_is_the_engines_failure(number: float, dimensions: int) -> None:
    with pytest.raises(RoundhouseError, match="no embeddings"):
        given(checked(route("m", shortens_embeddings=True), dimensions=dimensions), answer(packed([number, 1.0, 2.0])))
    translate = present(EMBEDDINGS.get_body_converter(checked(route("m"), dimensions=2)))
    with pytest.raises(RoundhouseError, match="no embeddings"):
        translate(b"<html>")
