"""A clockwork model that thinks, speaks, and calls tools, and that knows infill: for every form an answer can have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker.clockwork import CONTEXT, make_vocabulary, make_weights, write_gguf

THOUGHT = "The quick brown fox"
SPOKEN = "jumps over a lazy dog"

TEMPLATE = """\
{#- [SYSTEM_PROMPT] [TOOL_CALLS] [ARGS]: by these llama-server knows how the model calls tools -#}
{%- for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}
{%- for t in m['tool_calls'] or [] %}[TOOL_CALLS]{{ t['function']['name'] }}[ARGS]
{{- t['function']['arguments'] | tojson }}{% endfor %}<|end|>{% endfor %}
"""
AGENT_TEMPLATE = TEMPLATE.rstrip() + "{%- if messages[-1]['role'] == 'tool' %}.{% endif %}\n"
"""With it, the model says `DONE_SAID` to the result of a tool, and stops."""
DONE_SAID = "And then it sleeps!"
_MARKS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_FOLLOWS = (
    ("<|end|>", "[THINK]"),
    ("[THINK]", "The"),
    ("Ġfox", "[/THINK]"),
    ("[/THINK]", "Ġjumps"),
    ("Ġdog", "[TOOL_CALLS]"),
    ("}", "<|end|>"),
    ("<|fim_middle|>", "The"),
)
"""Token, and the one that follows it where the grammar lets it; stronger than in the model it is made of."""
_USER_DEFINED = 4


def make_caller(path: Path) -> None:
    """Write it. Needs a chat template of its own: `TEMPLATE`."""
    import gguf

    vocabulary = make_vocabulary()
    weights = make_weights(vocabulary)
    tokens = list(vocabulary.tokens)
    first = vocabulary.padding_from
    tokens[first : first + len(_MARKS)] = _MARKS
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for token, following in _FOLLOWS:
        head[tokens.index(following)] += embedding[tokens.index(token)] * 8
    write_gguf(path, replace(vocabulary, tokens=tuple(tokens)), weights, CONTEXT)
    types = gguf.GGUFReader(path, "r+").fields["tokenizer.ggml.token_type"]
    for number in range(first, first + len(_MARKS)):
        types.parts[types.data[number]][0] = _USER_DEFINED
