"""The error table: pinned, documented, and the envelope's form."""

from __future__ import annotations

import json

import pytest

from controller.schema.errors import ERROR_CODES, RoundhouseError
from tests.support.doc_tables import error_rows, error_types, rows_of, rows_within


def test_codes_and_statuses_are_pinned() -> None:
    assert {code: entry.status for code, entry in ERROR_CODES.items()} == {
        "invalid_json": 400,
        "invalid_request": 400,
        "https_required": 400,
        "invalid_load_request": 400,
        "invalid_declaration": 400,
        "declared_in_files": 409,
        "unknown_declaration": 404,
        "thinking_unsupported": 400,
        "modality_unsupported": 400,
        "multi_turn_unsupported": 400,
        "tools_unsupported": 400,
        "structured_output_unsupported": 400,
        "logprobs_unsupported": 400,
        "dimensions_unsupported": 400,
        "context_length_exceeded": 400,
        "previous_response_not_found": 400,
        "conversation_locked": 400,
        "file_unreadable": 400,
        "websocket_connection_limit_reached": 400,
        "stream_offset_lost": 400,
        "stream_stopped": 400,
        "invalid_api_key": 401,
        "invalid_gateway_token": 401,
        "forbidden_host": 403,
        "forbidden_origin": 403,
        "keys_required": 403,
        "scope_required": 403,
        "admin_closed": 403,
        "admin_not_here": 403,
        "model_not_allowed": 403,
        "route_disabled": 403,
        "storage_disabled": 403,
        "response_not_found": 404,
        "stream_not_found": 404,
        "conversation_item_not_found": 404,
        "conversation_not_found": 404,
        "benchmark_not_found": 404,
        "completion_not_found": 404,
        "unknown_model": 404,
        "unknown_replica": 404,
        "unknown_route": 404,
        "method_not_allowed": 405,
        "request_timeout": 408,
        "state_conflict": 409,
        "stream_replaced": 409,
        "body_too_large": 413,
        "schema_violation": 422,
        "rate_limit_exceeded": 429,
        "queue_full": 429,
        "headers_too_large": 431,
        "not_supported": 501,
        "internal_error": 500,
        "response_store_failed": 500,
        "engine_error": 502,
        "engine_unreachable": 502,
        "engine_disconnected": 502,
        "kv_cache_exhausted": 503,
        "controller_unavailable": 503,
        "gateway_stopping": 503,
        "gateway_restarted": 503,
        "streams_full": 503,
        "model_not_loaded": 503,
        "model_loading": 503,
        "model_unloading": 503,
        "model_failed": 503,
        "retrieval_disabled": 403,
        "retrieval_unavailable": 503,
        "retrieval_busy": 429,
        "document_not_found": 404,
        "tenant_not_found": 404,
        "file_not_found": 404,
        "vector_store_not_found": 404,
        "vector_store_expired": 400,
        "document_empty": 400,
        "document_too_large": 413,
        "document_encrypted": 422,
        "document_not_text": 422,
        "document_malformed": 422,
        "unsupported_media_type": 415,
        "parsing_timeout": 422,
        "parsing_failed": 422,
        "embedding_refused": 422,
        "embedding_unavailable": 503,
        "embedding_model_changed": 409,
        "rerank_unavailable": 503,
        "vector_store_unavailable": 503,
        "storage_full": 507,
        "storage_failed": 500,
        "tool_arguments_invalid": 400,
        "tools_disabled": 403,
        "mcp_server_not_found": 404,
        "prompt_not_found": 404,
        "resource_not_found": 404,
        "tool_rounds_full": 503,
        "tool_not_allowed": 403,
        "tool_not_found": 404,
        "tool_failed": 502,
        "tool_timeout": 504,
        "reference_invalid": 400,
        "source_not_found": 404,
        "source_forbidden": 403,
        "source_address_refused": 403,
        "source_unavailable": 503,
        "source_mismatch": 502,
        "models_disk_full": 507,
        "models_folder_failed": 500,
        "models_file_conflict": 409,
        "models_file_kept": 409,
        "download_not_found": 404,
        "downloads_disabled": 403,
        "transfers_unreachable": 503,
        "models_file_in_use": 409,
        "AICORE_DOWNLOADABLE": 503,
        "AICORE_DOWNLOADING": 425,
        "AICORE_UNAVAILABLE": 503,
        "AICORE_BACKGROUND_BLOCKED": 403,
        "AICORE_RUNTIME_ERROR": 500,
        "AICORE_UNKNOWN": 503,
        "LITERT_INIT_FAILED": 503,
    }


@pytest.mark.parametrize("error_type", error_types())
def test_the_docs_hold_the_same_table(error_type: str) -> None:
    assert rows_of("errors.md", error_type) == error_rows(error_type)


def test_the_docs_hold_no_other_code() -> None:
    assert len(rows_within("errors.md")) == len(ERROR_CODES)


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_says_what_to_do(code: str) -> None:
    error = RoundhouseError(code, "words", param="model", retry_after_s=2.4)
    body = json.loads(error.json_bytes("req-1"))["error"]
    assert body["code"] == code
    assert body["status"] == ERROR_CODES[code].status
    assert body["next_steps"]
    assert (body["message"], body["param"], body["request_id"]) == ("words", "model", "req-1")
    expected = {True: {"retry-after": "2"}, False: {"x-should-retry": "false"}, None: {}}
    assert error.build_headers() == expected[ERROR_CODES[code].retry]
