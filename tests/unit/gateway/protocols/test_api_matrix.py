"""Which way serves messages: by what the engine offers, whose engine it is, and what is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.api_matrix import ServingOption, serving_option
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route

NATIVE = ("/v1/messages", "/v1/messages/count_tokens")
CHAT = ("/v1/chat/completions", "/v1/chat/completions/input_tokens")


def way(path: str, backend: str, apis: tuple[str, ...], **fields: Any) -> ServingOption:
    request = parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True)
    return serving_option(path, request, route("m", apis=apis).model_copy(update={"backend": backend}))


@pytest.mark.parametrize(("path", "ours"), [(NATIVE[0], MESSAGES_VIA_CHAT), (NATIVE[1], MESSAGES_COUNTED_VIA_CHAT)])
def test_an_engines_own_messages_are_first_unless_they_are_flawed(path: str, ours: Any) -> None:
    for backend, dialect in (("openai_remote", MESSAGES), ("llama_server", ours), ("vllm_serve", ours)):
        assert way(path, backend, NATIVE + CHAT).dialect is dialect, backend
        assert way(path, backend, NATIVE).dialect is MESSAGES, "better than none"
        assert way(path, backend, CHAT).dialect is ours
    translated = way(path, "llama_server", NATIVE + CHAT)
    assert translated.target == translated.required_api
    assert translated.target in CHAT
    with pytest.raises(RoundhouseError, match="does not offer"):
        way(path, "llama_server", ("/v1/embeddings",))
    for thinking, dialect in (("enabled", MESSAGES_VIA_CHAT), ({"type": "enabled"}, MESSAGES), (None, MESSAGES)):
        assert way("/v1/messages", "openai_remote", NATIVE + CHAT, thinking=thinking).dialect is dialect
