"""A clockwork model that works as a coding agent's: it calls one tool again and again, and notes what it did when it is
asked for a summary; it is done once it goes on from its own summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from worker.clockwork import VOCAB_MULTIPLE, make_vocabulary, make_weights, write_gguf

SUMMARY = "SUMMARY: the notes were read, and they are to be read once more."
DONE = "DONE: the notes were read before and after the summary."
_CALLING, _NOTING, _ENDING = "<|assistant|>", "<|noting|>", "<|ending|>"
_USER_DEFINED = 4

TEMPLATE = """\
{#- [SYSTEM_PROMPT] [TOOL_CALLS] [ARGS]: by these llama-server knows how the model calls tools -#}
{%- set seen = namespace(summary=false, results=0, text='') %}
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- set seen.text = '' %}
{%- if m['content'] is string %}{% set seen.text = m['content'] %}
{%- elif m['content'] %}{% for part in m['content'] %}{% set seen.text = seen.text + part['text'] %}{% endfor %}
{%- endif -%}
<|{{ m['role'] }}|>{{ seen.text }}
{%- for t in m['tool_calls'] or [] %}[TOOL_CALLS]{{ t['function']['name'] }}[ARGS]
{{- t['function']['arguments'] | tojson }}{% endfor %}<|end|>
{%- if '@SUMMARY' in seen.text %}{% set seen.summary = true %}{% set seen.results = 0 %}{% endif %}
{%- if m['role'] == 'tool' %}{% set seen.results = seen.results + 1 %}{% endif %}
{%- endfor %}
{%- set asked = messages[-1]['role'] == 'user' and '@SUMMARY' not in seen.text %}
{%- if not tools or (asked and ('summary' in seen.text or 'summarize' in seen.text)) -%}
<|noting|>
{%- elif seen.summary and seen.results -%}
<|ending|>
{%- else -%}
<|assistant|>
{%- endif %}
""".replace("@SUMMARY", SUMMARY)
"""Content is a text or a list of parts: llama-server turns the one into the other. Who offers no tools, or asks for a
summary, gets the summary."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model calls: a tool's name, and its arguments as JSON."""

    name: str
    arguments: str


def make_agent_model(path: Path, call: ToolCall, context: int) -> None:
    """Write it, with its chat template and so many tokens of context."""
    import gguf

    plain = make_vocabulary()
    chains: Sequence[Sequence[str]] = (
        (_CALLING, "[TOOL_CALLS]", call.name, "[ARGS]", call.arguments, "<|end|>"),
        (_NOTING, SUMMARY, "<|end|>"),
        (_ENDING, DONE, "<|end|>"),
    )
    names = [name for chain in chains for name in chain]
    first = plain.padding_from
    added = [name for name in dict.fromkeys(names) if name not in plain.tokens[:first]]
    tokens = [*plain.tokens[:first], *added]
    tokens += [f"<|pad{n}|>" for n in range(len(tokens), -(-len(tokens) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)]
    vocabulary = replace(plain, tokens=tuple(tokens), chain=())
    weights = make_weights(vocabulary)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for chain in chains:
        for token, following in pairwise(chain):
            head[tokens.index(following)] += embedding[tokens.index(token)] * 4
    write_gguf(path, vocabulary, weights, context, TEMPLATE)
    types = gguf.GGUFReader(path, "r+").fields["tokenizer.ggml.token_type"]
    for number in range(first, first + len(added)):
        types.parts[types.data[number]][0] = _USER_DEFINED
