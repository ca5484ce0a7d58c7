"""What a model thinks, told from what it says."""

from __future__ import annotations

import pytest

from worker.engine import Piece
from worker.text.reasoning import GEMMA, MISTRAL, QWEN, Marks, is_open, marks_of, split_reasoning


def split(text: str, marks: Marks, *, opened: bool = False) -> tuple[str, str]:
    answer = (each for each in (Piece(text), Piece(finish_reason="stop")))
    pieces = [*split_reasoning(answer, marks, is_thinking=opened)]
    return "".join(piece.thought for piece in pieces), "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("text", "marks", "opened", "thought", "said"),
    [
        ("<think>\nhm\n\nwell\n</think>\n\nHi ", QWEN, False, "hm\n\nwell", "Hi "),
        ("\n<think>hm</think>Hi", QWEN, False, "hm", "Hi"),
        ("hm</think>\n\nHi", QWEN, True, "hm", "Hi"),
        ("<think>\n\n</think>\n\nHi", QWEN, False, "", "Hi"),
        ("<think>hm", QWEN, False, "hm", ""),
        ("hm", QWEN, True, "hm", ""),
        (" The tag <think> opens a thought, </think> ends it.", QWEN, False, "", None),
        ("<thin", QWEN, False, "", "<thin"),
        ("<|channel>thought\nhm\n<channel|>Hi", GEMMA, False, "hm", "Hi"),
        ("<|channel>thought\n<channel|>Hi", GEMMA, False, "", "Hi"),
        ("[THINK]hm[/THINK]Hi", MISTRAL, False, "hm", "Hi"),
    ],
)
def test_by_the_marks_at_the_beginning(text: str, marks: Marks, opened: bool, thought: str, said: str | None) -> None:
    assert split(text, marks, opened=opened) == (thought, text if said is None else said)


@pytest.mark.parametrize(
    ("prompt_format", "template", "marks"),
    [
        ("qwen3_template", "", QWEN),
        ("gemma4_template", "", GEMMA),
        ("generic", "", None),
        (None, "{{ messages }}", None),
        (None, "{{ content.split('</think>')[-1] }}", QWEN),
        ("generic", "{{ '<|channel>thought\\n<channel|>' }}", GEMMA),
        ("mistral_template", "[THINK][/THINK]", MISTRAL),
        ("translategemma_template", "<start_of_turn>", None),
    ],
)
def test_the_marks_of_a_format_or_of_the_template(
    prompt_format: str | None, template: str, marks: Marks | None
) -> None:
    assert marks_of(prompt_format, template) == marks


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("user: hi\nassistant: <think>\n", True), ("<think>\n\n</think>\n\n", False), ("say <think> twice", False)],
)
def test_a_prompt_may_end_inside_a_thought(prompt: str, opened: bool) -> None:
    assert is_open(prompt, QWEN) is opened
