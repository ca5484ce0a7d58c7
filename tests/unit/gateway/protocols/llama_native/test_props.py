"""What llama-server says of itself, as clients get it: without the folders of its host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.request import parse_request


def converted(path: str, body: bytes) -> bytes:
    [option] = SERVING_OPTIONS[path]
    convert = option.dialect.get_body_converter(parse_request(b'{"model": "m"}', may_stream=False))
    assert convert is not None
    return convert(body)


@pytest.mark.parametrize(
    ("path", "said", "told"),
    [
        ("/props", {"ui": False, "n": 1}, {"ui": True, "n": 1}),
        ("/props", {"model_path": "/srv/my models/deep/m.gguf"}, {"model_path": "m.gguf"}),
        ("/props", {"model_path": "m.gguf"}, {"model_path": "m.gguf"}),
        ("/props", {"model_path": "", "n": None}, {"model_path": "", "n": None}),
        ("/props", {"model_path": None}, {"model_path": None}),
        ("/props", {"error": {"path": "/srv/m.gguf"}}, {"error": {"path": "/srv/m.gguf"}}),
        ("/props", {"model_path": "/a/b.gguf", "path": "/a/b"}, {"model_path": "b.gguf", "path": "/a/b"}),
        (
            "/lora-adapters",
            [{"id": 0, "path": "/srv/models/fox.gguf", "scale": 0.5}, {"id": 1, "path": "f.gguf"}],
            [{"id": 0, "path": "fox.gguf", "scale": 0.5}, {"id": 1, "path": "f.gguf"}],
        ),
        ("/lora-adapters", [], []),
        ("/lora-adapters", [1, {"path": 2}], [1, {"path": 2}]),
        ("/lora-adapters", {"success": True}, {"success": True}),
    ],
)
def test_files_are_told_by_their_names(path: str, said: Any, told: Any) -> None:
    assert json.loads(converted(path, json.dumps(said).encode())) == told


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"model_path": "/a'])
def test_what_is_no_json_stays(body: bytes) -> None:
    assert converted("/props", body) == body
