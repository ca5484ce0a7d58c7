"""GET /v1/limits tells what the settings set."""

from __future__ import annotations

from typing import Any

from tests.support.response_state import site

MIB = 1024 * 1024


async def limits(**settings: Any) -> Any:
    """The limits of a gateway with these settings."""
    async with site(**settings) as here, here.gateway.get("/v1/limits") as answer:
        assert answer.status == 200
        return await answer.json()


async def test_the_limits_are_those_of_the_settings() -> None:
    told = await limits(
        max_body_mib=3,
        responses_retention_h=0.5,
        responses_max_mib=7,
        stream_ttl_s=12,
        retrieval_max_file_mib=5,
        max_inputs=9,
    )
    assert told == {
        "object": "limits",
        "max_body_bytes": 3 * MIB,
        "max_document_bytes": 5 * MIB,
        "retention_s": 1800,
        "max_stored_bytes": 7 * MIB,
        "stream_ttl_s": 12,
        "max_inputs": 9,
        "max_choices": 128,
        "max_images": 100,
        "max_tool_calls": 128,
    }


async def test_a_gateway_that_keeps_nothing_says_so() -> None:
    told = await limits(responses_retention_h=0, retrieval=False)
    assert (told["retention_s"], told["max_document_bytes"]) == (0, None)
