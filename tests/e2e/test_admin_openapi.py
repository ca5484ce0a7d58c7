"""The OpenAPI document, and requests generated from it against a whole Roundhouse: no 500, no undocumented answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.campaign import campaign_count
from tests.support.roundhouse_stack import RoundhouseStack

pytestmark = pytest.mark.engines

CASES = campaign_count(5, 40)
"""Per operation and mode."""
MODELS: dict[str, Any] = {
    "stub": {"backend": "stub", "enabled": False, "replica_max": 2},
    "org/slashed:name": {"backend": "llama_server", "model_path": "missing.gguf", "enabled": False},
    "exl": {"backend": "exllamav3", "model_path": "exl", "enabled": False},
    "remote": {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1", "enabled": False},
}
FIXED: dict[str, Any] = {"timeout_s": 0.05, "for_s": 0.05, "follow": "false"}
"""What keeps a generated request from waiting for long."""
load_all_checks()


async def test_the_document_passes_a_validator_and_generated_requests_find_nothing_undocumented(
    process_stack: RoundhouseStack,
) -> None:
    stack = process_stack
    stack.declare(MODELS)
    await stack.open()
    document: dict[str, Any] = (await stack.request("GET", "/openapi.json")).success
    OpenAPIV31SpecValidator(document).validate()
    asked = await asyncio.to_thread(_ask_everything, document, stack.url)
    assert asked == {path for path in document["paths"] if path.startswith("/v1/admin")}
    assert "Traceback" not in stack.log("controller") + stack.log("gateway")


def _ask_everything(document: dict[str, Any], url: str) -> set[str]:
    schema = schemathesis.openapi.from_dict(document)
    asked = set()
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr] # what is no operation has no `ok`, and fails here
        if operation.path.startswith("/v1/admin"):
            asked.add(operation.path)
            _ask(operation, schemathesis.GenerationMode.POSITIVE, url)
            if list(operation.query) or list(operation.body):
                _ask(operation, schemathesis.GenerationMode.NEGATIVE, url)
    return asked


def _ask(operation: Any, mode: schemathesis.GenerationMode, url: str) -> None:
    names = st.sampled_from([*MODELS, "nobody"])

    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), name=names, known=st.integers(0, 3))
    def ask(case: Any, name: str, known: int) -> None:
        if case.path_parameters and "name" in case.path_parameters and known:
            case.path_parameters["name"] = name
        fixed = {key: value for key, value in FIXED.items() if operation.get_parameter(key, "query") is not None}
        answer = case.call_and_validate(
            base_url=url,
            params=fixed,
            timeout=60,
            checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
        )
        # 500 is documented, and must not be met.
        assert answer.status_code != 500, answer.text

    ask()
