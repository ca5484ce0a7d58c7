"""What an engine's rendering of a conversation tells of its model's chat template."""

from __future__ import annotations

import pytest

from controller.observe.template_probe import judge_rendering


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, '{"prompt": "<|user|>a<|system|>7351<|end|>"}', "taken"),
        (200, '{"prompt": "<|user|>a<|end|>"}', "refused"),
        (200, '{"count": 4, "token_strs": ["<|user|>", "73", "5", "1"]}', "taken"),
        (200, '{"count": 4, "token_strs": ["<|user|>", "a"]}', "refused"),
        (400, '{"error": {"message": "System message must be at the beginning."}}', "refused"),
        (500, '{"error": {"message": "Jinja Exception"}}', "refused"),
        (200, "{}", "untold"),
        (200, '{"token_strs": null}', "untold"),
        (200, '{"prompt": 5}', "untold"),
        (200, "[]", "untold"),
        (200, "not JSON", "untold"),
        (200, "[" * 100_000, "untold"),
        (404, "", "untold"),
        (401, "", "untold"),
        (503, "", "untold"),
    ],
)
def test_what_became_of_the_system_message(status: int, text: str, expected: str) -> None:
    assert judge_rendering(status, text) == expected
