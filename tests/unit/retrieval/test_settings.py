"""The settings of retrieval."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from retrieval.settings import RetrievalSettings


@pytest.mark.parametrize("url", ["http://qdrant:6333", "https://qdrant.example/prefix", "http://[::1]:6333", None])
def test_an_address_of_a_qdrant_server(url: str | None) -> None:
    assert RetrievalSettings.model_validate({"qdrant_url": url}).qdrant_url == url


@pytest.mark.parametrize(
    "url",
    [
        *("qdrant", "qdrant:6333", "//qdrant:6333", "ftp://qdrant", "http://", "http://:6333", "http://qdrant:port"),
        *("http://qdrant:99999", "http://[::1", "http://a b:6333", "http://qdrant:6333\n", " http://qdrant"),
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RetrievalSettings.model_validate({"qdrant_url": url})
    [error] = caught.value.errors()
    assert (error["loc"], error["msg"]) == (
        ("qdrant_url",),
        "Value error, must be the address of a server, such as http://qdrant:6333",
    )
