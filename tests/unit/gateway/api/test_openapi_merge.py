"""One document out of two: the controller's admin routes beside the gateway's own."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from fastapi import FastAPI
from openapi_spec_validator import validate
from pydantic import create_model

from contract.admin import AdminModels, UnloadRequest
from contract.errors import ERROR_CODES
from gateway.api.declare import ADMIN_CODES, admin_errors, error_responses
from gateway.api.inference import INFERENCE_CODES
from gateway.api.openapi_merge import decode_document, merge_documents
from gateway.settings import GatewaySettings
from tests.fakes.gateway_harness import assemble_gateway


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(schema: Any, **operation: Any) -> dict[str, Any]:
    body = {"application/json": {"schema": schema}}
    return {"get": {"responses": {"200": {"description": "x", "content": body}}, **operation}}


def document(paths: dict[str, Any], schemas: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    components = {} if schemas is None else {"components": {"schemas": schemas}}
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths, **components, **more}


def schemas_of(merged: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = merged["components"]["schemas"]
    return schemas


def schema_of(merged: dict[str, Any], path: str) -> Any:
    return merged["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]


OWN = document({"/v1/models": answer(ref("Error"))}, {"Error": {"type": "object"}}, tags=[{"name": "models"}])


def test_only_admin_paths_come_over_and_only_what_they_use() -> None:
    controller = document(
        {
            "/v1/admin/models": answer(ref("List")),
            "/internal/status": answer(ref("Secret")),
            "/v1/administer": answer(ref("Secret")),
            "/metrics": answer(ref("Secret")),
        },
        {"List": {"items": ref("Row")}, "Row": {"type": "string"}, "Secret": {"type": "null"}},
    )
    merged = merge_documents(OWN, controller)
    assert set(merged["paths"]) == {"/v1/models", "/v1/admin/models"}
    assert set(schemas_of(merged)) == {"Error", "List", "Row"}


def test_only_tags_in_use_come_over() -> None:
    controller = document(
        {"/v1/admin/x": answer({}, tags=["admin", "models"]), "/internal/y": answer({}, tags=["internal"])},
        tags=[{"name": "internal"}, {"name": "admin", "description": "d"}, {"name": "models", "description": "other"}],
    )
    assert merge_documents(OWN, controller)["tags"] == [{"name": "models"}, {"name": "admin", "description": "d"}]


def test_neither_document_is_changed() -> None:
    controller = document({"/v1/admin/models": answer(ref("Error"))}, {"Error": {"type": "string"}})
    before = copy.deepcopy((OWN, controller))
    merge_documents(OWN, controller)
    assert (OWN, controller) == before


def test_the_same_component_is_there_once() -> None:
    merged = merge_documents(OWN, document({"/v1/admin/models": answer(ref("Error"))}, {"Error": {"type": "object"}}))
    assert set(schemas_of(merged)) == {"Error"}
    assert schema_of(merged, "/v1/admin/models") == ref("Error")


def test_another_component_of_the_same_name_gets_another_name() -> None:
    merged = merge_documents(OWN, document({"/v1/admin/models": answer(ref("Error"))}, {"Error": {"type": "string"}}))
    assert schemas_of(merged) == {"Error": {"type": "object"}, "ControllerError": {"type": "string"}}
    assert schema_of(merged, "/v1/admin/models") == ref("ControllerError")
    assert schema_of(merged, "/v1/models") == ref("Error")


def test_a_new_name_is_free() -> None:
    controller = document(
        {"/v1/admin/models": answer({"anyOf": [ref("Error"), ref("ControllerError")]})},
        {"Error": {"type": "string"}, "ControllerError": {"type": "number"}},
    )
    merged = merge_documents(OWN, controller)
    assert schemas_of(merged)["ControllerControllerError"] == {"type": "string"}
    assert schemas_of(merged)["ControllerError"] == {"type": "number"}


def test_what_refers_to_something_else_is_not_the_same() -> None:
    same = {"Envelope": {"properties": {"error": ref("Body")}}, "Outer": {"items": ref("Envelope")}}
    own = document({"/v1/models": answer(ref("Outer"))}, {**same, "Body": {"type": "object"}})
    controller = document({"/v1/admin/models": answer(ref("Outer"))}, {**same, "Body": {"type": "string"}})
    schemas = schemas_of(merge_documents(own, controller))
    assert schemas["ControllerOuter"] == {"items": ref("ControllerEnvelope")}
    assert schemas["ControllerEnvelope"] == {"properties": {"error": ref("ControllerBody")}}
    assert schemas["ControllerBody"] == {"type": "string"}
    assert schemas["Outer"] == same["Outer"]


def test_components_that_refer_to_each_other_come_over() -> None:
    loop = {"A": {"items": ref("B")}, "B": {"items": ref("A")}}
    assert set(schemas_of(merge_documents(OWN, document({"/v1/admin/x": answer(ref("A"))}, loop)))) == {
        "Error",
        "A",
        "B",
    }


def test_a_discriminators_mapping_is_renamed_too() -> None:
    union = {"oneOf": [ref("Error")], "discriminator": {"propertyName": "k", "mapping": {"e": ref("Error")["$ref"]}}}
    merged = merge_documents(OWN, document({"/v1/admin/x": answer(union)}, {"Error": {"type": "string"}}))
    assert schema_of(merged, "/v1/admin/x")["discriminator"]["mapping"] == {"e": ref("ControllerError")["$ref"]}


def test_what_the_gateway_itself_may_answer_is_added() -> None:
    theirs = {"503": {"description": "`model_failed`: x `gone`: y", "content": {}}}
    item = {"parameters": [], "post": {"responses": theirs}}
    merged = merge_documents(
        OWN, document({"/v1/admin/x": item}), {"503": ["- `gone`: y", "- `stopping`: z"], "403": ["- `no`: w"]}
    )
    added = merged["paths"]["/v1/admin/x"]["post"]["responses"]
    assert added["503"] == {"description": "`model_failed`: x `gone`: y\n- `stopping`: z", "content": {}}
    assert added["403"]["description"] == "- `no`: w"
    assert added["403"]["content"]["application/json"]["schema"] == ref("ErrorEnvelope")
    assert merged["paths"]["/v1/admin/x"]["parameters"] == []
    assert "403" not in merged["paths"]["/v1/models"]["get"]["responses"]


@pytest.mark.parametrize("broken", [{}, {"paths": []}, {"paths": {}, "components": 1}])
def test_what_is_no_document_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an OpenAPI document"):
        merge_documents(OWN, broken)
    for text in (b"[]", b"no"):
        with pytest.raises(ValueError):  # noqa: PT011
            decode_document(text)


Envelope: Any = create_model("ErrorEnvelope", rows=(list[int], ...))
"""Called as one of the gateway's, and different."""


def own_document() -> dict[str, Any]:
    framework: Any = assemble_gateway(GatewaySettings(controller_url="unix:/nowhere")).app._framework
    described: dict[str, Any] = framework.openapi()
    return described


def test_real_documents_make_a_valid_one() -> None:
    controller = FastAPI()

    @controller.get("/v1/admin/models")
    async def models() -> AdminModels:
        raise AssertionError

    @controller.post("/v1/admin/models/{name:path}/unload")
    async def unload(name: str, body: UnloadRequest) -> Envelope:
        raise AssertionError

    merged = merge_documents(own_document(), controller.openapi(), admin_errors())
    validate(merged)
    unload_answers = merged["paths"]["/v1/admin/models/{name}/unload"]["post"]["responses"]
    assert all("`" in unload_answers[str(ERROR_CODES[code].status)]["description"] for code in ADMIN_CODES)
    assert {"ErrorEnvelope", "ControllerErrorEnvelope", "AdminModel", "LoadConstraint"} <= set(schemas_of(merged))
    operations = [operation["operationId"] for item in merged["paths"].values() for operation in item.values()]
    assert len(operations) == len(set(operations))


def test_the_gateways_routes_are_described_in_full() -> None:
    own = own_document()
    validate(own)
    known = {tag["name"] for tag in own["tags"]}
    for path, item in own["paths"].items():
        for operation in item.values():
            assert operation["summary"], path
            assert operation["description"], path
            assert set(operation["tags"]) <= known, path
            assert operation["tags"], path
            assert "HTTPValidationError" not in json.dumps(operation), path


def test_each_error_status_of_an_inference_route_lists_its_codes() -> None:
    own = own_document()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        operation = own["paths"][path]["post"]
        for code in INFERENCE_CODES:
            described = operation["responses"][str(ERROR_CODES[code].status)]["description"]
            assert f"`{code}`: {ERROR_CODES[code].meaning}" in described
            assert f"`{code}`" in operation["description"]


def test_errors_are_grouped_by_status() -> None:
    both = error_responses("model_loading", "unknown_model", "controller_unavailable")
    assert list(both) == [404, 503]
    assert both[503]["description"].count("\n") == 1
