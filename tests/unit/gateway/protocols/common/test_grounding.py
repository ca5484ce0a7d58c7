"""Passages in the message that asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols.common.grounding import add_passages
from gateway.protocols.common.passages import Passage

PASSAGE = Passage("d1", "a.md", chunk=0, start=0, end=4, page=None, score=1.0, text="Coal")


@pytest.mark.parametrize(
    ("content", "behind"), [("What burns?", "\n\nWhat burns?"), (None, ""), ([], [])], ids=["text", "null", "parts"]
)
def test_passages_stand_before_what_the_message_has(content: Any, behind: Any) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "rag": True}
    grounded = add_passages(fields, [PASSAGE])
    assert "rag" not in grounded
    [message] = grounded["messages"]
    if isinstance(behind, list):
        assert [part["type"] for part in message["content"]] == ["text"]
    else:
        head, _, tail = message["content"].rpartition("Coal")
        assert head
        assert tail.split("Question:") == ["\n\n", behind]
        assert "None" not in message["content"]
    assert fields["messages"][0]["content"] == content, "the request's own fields stay"
