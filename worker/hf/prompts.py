"""Renders chat templates as Hugging Face's tokenizers do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from worker.errors import LoadError, RequestError
from worker.hf.folder import HFFolder
from worker.hf.vocabulary import HFVocabulary
from worker.schema import ChatRequest
from worker.text.prompt_form import TemplateForm


class _Generation(Extension):
    """Jinja's tag `{% generation %}`, which marks the model's own words for training. A prompt contains them like any
    others."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class HFForms:
    """The chat templates of a folder, compiled: one, and for requests with tools a second one where the folder has it.

    Creating it raises LoadError for a template with a wrong syntax, and if `prompt_format` is given where there is no
    template. A folder without templates is no error.
    """

    def __init__(self, folder: HFFolder, vocabulary: HFVocabulary, prompt_format: str | None) -> None:
        forms = {
            name: _form(name, template, folder.special_tokens, vocabulary, prompt_format)
            for name, template in folder.templates.items()
        }
        self._form = forms.get("default")
        self._with_tools = forms.get("tool_use", self._form)
        if self._form is None and prompt_format is not None:
            raise LoadError(f"--prompt-format {prompt_format}: there is no chat template in {folder.path}")

    def choose_form(self, request: ChatRequest) -> TemplateForm:
        """Return the form for this request: the one for tools only if the request offers tools. Raises RequestError
        with `param` `messages` if the folder has no chat template."""
        form = self._with_tools if request.offered_tools else self._form
        if form is None:
            raise RequestError("This model has no chat template: send its prompt to /v1/completions.", param="messages")
        return form


def _form(
    name: str, template: str, tokens: Mapping[str, str], vocabulary: HFVocabulary, prompt_format: str | None
) -> TemplateForm:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: f"{datetime.now():{form}}"}  # noqa: DTZ005 - the host's day is meant
    try:
        compiled_template = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise LoadError(f"the chat template {name} cannot be used: {error}") from None

    def render(**template_variables: Any) -> str:
        return compiled_template.render({**tokens, **template_variables, "add_generation_prompt": True})

    return TemplateForm(render, (jinja2.TemplateError,), vocabulary, template, prompt_format)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes `<` as \u003c for HTML; models were not trained on that.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
