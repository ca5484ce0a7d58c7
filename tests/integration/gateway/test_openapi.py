"""Requests generated from the gateway's document, against its own routes: no 500, no undocumented answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from gateway.api.inference import INFERENCE_ROUTES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.campaign import campaign_count
from tests.support.queueing import key
from tests.support.raw_http import spotless

CASES = campaign_count(5, 40)
"""Per operation and mode."""
STORED = 14 * CASES
MODELS = ("m", "org/m", "alias", "loading", "nobody")
SECRETS = ("all", "all", "all", "inference", "other", "nobody", None)
SAID = [{"role": "user", "content": "Hi"}]
STORED_OBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "response_id": ("/v1/responses", {"model": "m", "input": "Hi"}),
    "completion_id": ("/v1/chat/completions", {"model": "m", "messages": SAID, "store": True}),
    "conversation_id": ("/v1/conversations", {"items": SAID}),
}
"""By the name of a path's parameter, how an object of that id is made."""
Known = dict[str, Iterator[str]]
"""By that name, ids of objects, each used once."""
STREAMING = {route.api.path for route in INFERENCE_ROUTES if route.api.streams}
ENDLESS = "/models/sse"
"""An event stream that only its client ends. Generated requests would wait for its end."""
load_all_checks()


async def test_the_document_passes_a_validator_and_generated_requests_find_nothing_undocumented(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(1) as (engine,):
        both = ("inference", "admin")
        await gateway.publish(
            route("m", [engine.url]),
            route("org/m", [engine.url], aliases=("alias",), apis=("/v1/chat/completions", "/props")),
            route("unreachable", ["http://127.0.0.1:9"]),
            route("loading"),
            keys=(key("all", scopes=both), key("inference"), key("other", scopes=both, models=("x",))),
        )
        document = (await gateway.get("/openapi.json", key="secret-all")).body
        OpenAPIV31SpecValidator(document).validate()
        known = {
            name: iter([(await gateway.post(path, fields, key="secret-all")).body["id"] for _ in range(STORED)])
            for name, (path, fields) in STORED_OBJECTS.items()
        }
        asked = await asyncio.to_thread(ask_everything, document, gateway.url, known)
        asked.add(await ask_endless(gateway, document))
        assert asked == set(document["paths"])
        assert "Traceback" not in caplog.text
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        assert engine.requests
        await gateway.client.close()
        await spotless(gateway)


async def ask_endless(gateway: GatewayHarness, document: dict[str, Any]) -> str:
    """Compare the head of the endless answer with the document; its path."""
    documented = document["paths"][ENDLESS]["get"]["responses"]
    for secret, status in (("all", 200), ("nobody", 401)):
        async with gateway.get(ENDLESS, key=f"secret-{secret}") as response:
            assert response.status == status
            assert list(documented[str(status)]["content"]) == [response.content_type]
    return ENDLESS


def ask_everything(document: dict[str, Any], url: str, known: Known) -> set[str]:
    """Ask every operation, as documented and not; the paths."""
    asked = set()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr] # what is no operation has no `ok`, and fails here
        if operation.path == ENDLESS:
            continue
        asked.add(operation.path)
        ask(operation, schemathesis.GenerationMode.POSITIVE, url, known)
        if list(operation.body):
            ask(operation, schemathesis.GenerationMode.NEGATIVE, url, known)
    return asked


def ask(operation: Any, mode: schemathesis.GenerationMode, url: str, known: Known) -> None:
    """Generated requests for one operation, most with a name of a model and a key that opens it."""

    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode),
        model=st.sampled_from((*MODELS, None)),
        secret=st.sampled_from(SECRETS),
    )
    def one(case: Any, model: str | None, secret: str | None) -> None:
        name_model(case, model)
        if model == "m" and case.path_parameters:
            for name in case.path_parameters.keys() & known.keys():
                case.path_parameters[name] = next(known[name])
        headers = {"authorization": f"Bearer secret-{secret}"} if secret else {}
        checks = [status_code_conformance, content_type_conformance]
        response = case.call_and_validate(base_url=url, headers=headers, timeout=60, checks=checks)
        assert response.status_code != 500, response.text  # it is documented, and must not be met

    one()


def name_model(case: Any, model: str | None) -> None:
    """Put the model's name where the request has one; None: leave what was generated."""
    if model is None:
        return
    if isinstance(case.body, dict):
        case.body["model"] = model
        # The engine is a mock that does as it is told.
        if isinstance(case.body.get("max_tokens"), int):
            case.body["max_tokens"] %= 20
        if case.path not in STREAMING:
            case.body.pop("stream", None)
    if case.path_parameters and "name" in case.path_parameters:
        case.path_parameters["name"] = model
    if case.query is not None and "model" in case.query:
        case.query["model"] = model
