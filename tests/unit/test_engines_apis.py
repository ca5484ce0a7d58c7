"""The paths that engines answer themselves, as docs/models.md says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support.doc_tables import rows_of

NEEDED: dict[str, dict[str, Any]] = {"openai_remote": {"base_url": "http://x/v1"}, "stub": {}}


def offered(backend: str, **fields: Any) -> tuple[str, ...]:
    needed = NEEDED.get(backend, {"model_path": "m.gguf"})
    definition = ENGINES[backend].definition.model_validate({"backend": backend, **needed, **fields})
    return ENGINES[backend].apis(definition)


@pytest.mark.parametrize("row", rows_of("models.md", "Which APIs an engine answers"))
def test_the_table_is_true(row: str) -> None:
    _, model, paths, _ = row.split("|")
    backend, *mode = re.findall(r"`(\w+)`", model)
    assert offered(backend, **dict.fromkeys(mode, True)) == tuple(re.findall(r"`([^`]+)`", paths))


def test_the_table_has_every_backend_and_every_mode() -> None:
    rows = rows_of("models.md", "Which APIs an engine answers")
    told = {tuple(re.findall(r"`(\w+)`", row.split("|")[1])) for row in rows}
    modes = {
        (name, field)
        for name, engine in ENGINES.items()
        for field in engine.definition.model_fields
        if field.endswith(("_embedding", "_reranking"))
    }
    assert told == {(name,) for name in ENGINES if name != "openai_remote"} | modes


def test_a_remote_offers_what_it_declares() -> None:
    assert offered("openai_remote") == ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
    assert offered("openai_remote", remote_apis=["/v1/messages"]) == ("/v1/messages",)
