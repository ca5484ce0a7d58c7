"""Routes that are declared by a `RouteSpec`: access, body and document follow from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import Field

from contract.errors import RoundhouseError
from contract.route_spec import Parameter, RouteSpec
from gateway.api.declare import HttpRoutes, RequestBody, Rule, parse_body
from gateway.ingress.middleware import RouteAccess
from gateway.server.body_budget import BodyBudget


class Wanted(RequestBody):
    names: Annotated[
        list[str], Field(max_length=2), Rule("must be an array of strings", "has {actual_length} of {max_length}")
    ]
    count: int = Field(1, ge=1, description="How many.")


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({}, "names", "`names` must be an array of strings."),
        ({"names": None}, "names", "`names` must be an array of strings."),
        ({"names": ["a", 1]}, "names", "`names` must be an array of strings."),
        ({"names": ["a", "b", "c"]}, "names", "`names` has 3 of 2."),
        ({"names": [], "count": "2"}, "count", "`count`: Input should be a valid integer."),
    ],
)
def test_a_wrong_field_is_refused_in_the_words_of_its_rule(fields: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(RoundhouseError, match=place) as refusal:
        parse_body(Wanted, fields)
    assert (refusal.value.entry.code, refusal.value.param, refusal.value.message) == ("invalid_request", place, message)


def test_a_body_that_fits_is_an_object_and_unknown_fields_do_not_matter() -> None:
    assert parse_body(Wanted, {"names": ["a"], "other": 1}) == Wanted(names=["a"], count=1)


def test_access_parameters_body_and_codes_follow_from_the_spec() -> None:
    app = FastAPI()
    spec = RouteSpec(
        "POST",
        "/things",
        "Things",
        answer=dict[str, int],
        body=Wanted,
        access="admin",
        codes=("unknown_model", "invalid_request"),
        query=(Parameter("deep", "Whether.", {"type": "boolean"}),),
        tag="models",
    )

    @HttpRoutes(app, 100, BodyBudget(100)).add(spec)
    async def make_things(request: Request, body: Wanted) -> dict[str, int]:
        """Makes things, in one
        paragraph."""
        return {}

    operation = app.openapi()["paths"]["/things"]["post"]
    assert ("POST", "/things", "admin") in RouteAccess(app.routes[-1:]).list_declarations()
    assert operation["summary"] == "Things"
    assert operation["description"].startswith("Makes things, in one paragraph.\n\nError codes: `unknown_model`, `inv")
    assert operation["description"].count("`invalid_request`") == 1
    assert {"400", "403", "404", "408", "413", "default"} <= operation["responses"].keys()
    assert [each["name"] for each in operation["parameters"]] == ["deep"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "count": {"type": "integer", "default": 1, "minimum": 1, "description": "How many."},
        },
        "required": ["names"],
    }


async def test_the_memory_of_a_body_is_given_back_before_its_answer_is_read() -> None:
    app, budget, seen = FastAPI(), BodyBudget(2**24), list[bool]()
    spec = RouteSpec("POST", "/things", "Things", body={"type": "object"}, access="admin", tag="models")

    @HttpRoutes(app, 2**20, budget).add(spec, response_class=StreamingResponse)
    async def make_things(body: Any) -> StreamingResponse:
        """Makes things."""

        async def answer() -> AsyncIterator[bytes]:
            seen.append(budget.used_bytes > 0)
            yield b"{}"

        seen.append(budget.used_bytes > len(body["text"]))
        return StreamingResponse(answer())

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.post("/things", json={"text": "x" * 500_000})).content == b"{}"
    assert seen == [True, False]
