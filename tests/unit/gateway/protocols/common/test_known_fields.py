"""The fields of each API family, and what remotes get of others."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chats

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.known_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    MESSAGE_FIELDS,
    check_foreign_fields,
    drop_foreign_fields,
)
from tests.fakes.fake_controller import route

ASKED: dict[str, Any] = {"model": "m", "messages": [], "top_k": 3, "client_metadata": {"session_id": "s"}}


def remote(*extra_fields: str, **more: Any) -> ModelRoute:
    """A model that is served elsewhere."""
    return route("m", ["http://x"], extra_fields=extra_fields, **more)


@pytest.mark.parametrize(
    ("known", "declared"),
    [
        (CHAT_FIELDS, [chats.CompletionCreateParamsStreaming]),
        (COMPLETION_FIELDS, [completions.CompletionCreateParamsStreaming]),
        (EMBEDDING_FIELDS, [embeddings.EmbeddingCreateParams]),
        (
            MESSAGE_FIELDS - {"output_format"},
            [messages.MessageCreateParamsStreaming, beta_messages.MessageCreateParamsStreaming],
        ),
    ],
    ids=["chat", "completions", "embeddings", "messages"],
)
def test_a_familys_fields_are_those_of_its_own_package(known: Set[str], declared: list[Any]) -> None:
    names = {name for each in declared for name in get_type_hints(each)}
    assert names <= known
    # What an older API or a sampling parameter of it was called may be missing in the newest types.
    assert known - names <= {"temperature", "top_p", "top_k"}


def test_an_engine_of_ours_gets_every_field() -> None:
    assert drop_foreign_fields(ASKED, CHAT_FIELDS, route("m", ["http://x"])) is ASKED


def test_a_remote_gets_what_the_family_knows_and_what_it_lists() -> None:
    asked = dict(ASKED)
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote()) == {"model": "m", "messages": []}
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote("top_k")) == {"model": "m", "messages": [], "top_k": 3}
    assert asked == ASKED
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote("top_k", "client_metadata")) is asked


def test_a_remote_gets_the_field_that_tells_it_to_think() -> None:
    asked = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}, "thinking": "disabled"}
    kept = drop_foreign_fields(asked, CHAT_FIELDS, remote(thinking_control="chat_template_kwargs"))
    assert kept.keys() == {"model", "chat_template_kwargs"}


@pytest.mark.parametrize("name", ["guided_json", "grammar", "json_schema", "structured_outputs"])
def test_a_form_that_would_not_reach_a_remote_is_refused(name: str) -> None:
    asked = {**ASKED, name: {"type": "object"}}
    with pytest.raises(RoundhouseError) as caught:
        check_foreign_fields(asked, CHAT_FIELDS, remote())
    assert (caught.value.entry.code, caught.value.param) == ("structured_output_unsupported", name)
    assert "remote_fields" in str(caught.value)
    check_foreign_fields(asked, CHAT_FIELDS, remote(name))
    check_foreign_fields({**ASKED, name: None}, CHAT_FIELDS, remote())
    check_foreign_fields(asked, CHAT_FIELDS, route("m", ["http://x"]))
