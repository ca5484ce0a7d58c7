"""What the gateway passes through and what it translates, for each backend, as docs/models.md says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support.api_table import api_rows, modes, native_apis
from tests.support.doc_tables import rows_of

HEADING = "Which APIs a model has"


def test_the_table_is_true() -> None:
    assert rows_of("models.md", HEADING) == api_rows()


def test_the_table_has_every_backend_and_every_mode() -> None:
    told = {
        tuple(re.findall(r"`(\w+)`", name))
        for row in rows_of("models.md", HEADING)
        for name in row.split("|")[1].split(", ")
    }
    found = {
        (name, field)
        for name, engine in ENGINES.items()
        for field in engine.definition.model_fields
        if field.endswith(("_embedding", "_reranking"))
    }
    assert told == {(name,) for name in ENGINES if name != "openai_remote"} | found
    assert {mode for mode in modes() if len(mode) == 2} == found


@pytest.mark.parametrize(
    ("fields", "apis"),
    [
        ({}, ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")),
        ({"remote_apis": ["/v1/messages"]}, ("/v1/messages",)),
    ],
)
def test_a_remote_offers_what_it_declares(fields: dict[str, Any], apis: tuple[str, ...]) -> None:
    assert native_apis("openai_remote", **fields) == apis


def test_which_engines_know_the_dimensions_of_embeddings() -> None:
    # To any other they are never sent: llama-server answers with its own, as if nothing had been asked for.
    assert {name for name, engine in ENGINES.items() if engine.takes_dimensions} == {
        "vllm",
        "vllm_serve",
        "openai_remote",
    }
