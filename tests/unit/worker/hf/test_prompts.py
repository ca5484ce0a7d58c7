"""Chat templates as Hugging Face's tokenizers render them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clockwork_folders import write_tokenizer
from worker.clockwork import CHAT_TEMPLATE, make_vocabulary
from worker.errors import LoadError, RequestError
from worker.hf.engine import HFForms
from worker.hf.folder import HFFolder, HFVocabulary
from worker.schema import ChatRequest, parse_request

TOOL = {"type": "function", "function": {"name": "f", "description": "<ä>"}}


def forms(folder: Path, template: str | None, prompt_format: str | None = None) -> HFForms:
    write_tokenizer(folder, make_vocabulary(), template)
    read = HFFolder(folder, folder)
    return HFForms(read, HFVocabulary(read), prompt_format)


def asked(**fields: Any) -> ChatRequest:
    return parse_request(
        ChatRequest, json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode()
    )


@pytest.mark.parametrize(
    ("template", "fields", "prompt"),
    [
        (CHAT_TEMPLATE, {}, "<|user|>hello<|end|><|assistant|>"),
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", {}, "<|endoftext|>hello<|end|>"),
        ("{{ tools[0] | tojson }}", {"tools": [TOOL]}, json.dumps(TOOL, ensure_ascii=False)),
        ("{{ tools is none }}", {}, "True"),
        ("{% for m in messages %}\n  {% if m %}\nx\n  {% endif %}\n{% endfor %}", {}, "x\n"),
        ("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", {}, "1"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", {}, "ahellob"),
        ("{{ enable_thinking }}", {"thinking": "disabled"}, "False"),
        ("{{ reasoning_effort }}", {"reasoning_effort": "low"}, "low"),
        ("{{ pad_token }}", {"chat_template_kwargs": {"pad_token": "mine"}}, "mine"),
        ("{{ strftime_now('%d')[0] in '0123' }}", {}, "True"),
    ],
)
def test_a_prompt_is_rendered_by_the_models_template(
    tmp_path: Path, template: str, fields: dict[str, Any], prompt: str
) -> None:
    request = asked(**fields)
    made = forms(tmp_path, template).choose_form(request).render_prompt(request)
    assert made.text == prompt
    assert made.tokens, "and its tokens"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system prompt') }}", "no system prompt"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_a_template_that_refuses(tmp_path: Path, template: str, reason: str) -> None:
    with pytest.raises(RequestError) as raised:
        forms(tmp_path, template).choose_form(asked()).render_prompt(asked())
    assert raised.value.param == "messages"
    assert str(raised.value).startswith("The chat template makes no prompt of this conversation: ")
    assert reason in str(raised.value)


def test_a_second_template_for_tools(tmp_path: Path) -> None:
    templates: Any = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    both = forms(tmp_path, templates)
    assert both.choose_form(asked()).render_prompt(asked()).text == "plain"
    with_tools = asked(tools=[TOOL])
    assert both.choose_form(with_tools).render_prompt(with_tools).text == "tools"


def test_a_format_needs_a_template_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=f"--prompt-format generic: there is no chat template in {tmp_path}"):
        forms(tmp_path, None, "generic")
    with pytest.raises(LoadError, match="the chat template default cannot be used: Expected an expression"):
        forms(tmp_path, "{% if %}{")
    with pytest.raises(RequestError, match="no chat template: send its prompt to /v1/completions"):
        forms(tmp_path, None).choose_form(asked())
