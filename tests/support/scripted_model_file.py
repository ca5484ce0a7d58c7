"""Clockwork models that say what a test wants, token by token, with a chat template of the test's: any text, or a
thought, a sentence and a call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from worker.clockwork import (
    CHAT_TEMPLATE,
    CONTEXT,
    VOCAB_MULTIPLE,
    Vocabulary,
    make_vocabulary,
    make_weights,
    write_gguf,
)
from worker.text.answer_text import byte_alphabet

Token = str | bytes
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


def make_scripted_model(
    path: Path,
    says: Sequence[Token],
    template: str = CHAT_TEMPLATE,
    *,
    hidden: Collection[Token] = (),
    after: Token = "<|assistant|>",
    begins: bool = False,
) -> None:
    """Write it. Its answer to any prompt that ends with the token `after` is these tokens, all of them different, and
    the end token. A text is one token, whatever its length; one of `hidden` is a control token, whose text engines do
    not tell unless asked. Bytes need not be UTF-8 on their own. With
    `begins`, a prompt begins with a token of its own."""
    import gguf

    vocabulary, added = speaker_vocabulary(says, after)
    write_gguf(path, vocabulary, make_weights(vocabulary), CONTEXT, template)
    tokens = vocabulary.tokens
    kinds = {token_name(each): _USER_DEFINED if isinstance(each, str) else _NORMAL for each in says}
    kinds |= {token_name(each): _CONTROL for each in hidden}
    fields = gguf.GGUFReader(path, "r+").fields
    fields["tokenizer.ggml.add_bos_token"].parts[-1][0] = begins
    types = fields["tokenizer.ggml.token_type"]
    for number in added:
        types.parts[types.data[number]][0] = kinds[tokens[number]]


def speaker_vocabulary(says: Sequence[Token], after: Token = "<|assistant|>") -> tuple[Vocabulary, range]:
    """The vocabulary in which these tokens follow each other, and the numbers of those that it adds."""
    plain = make_vocabulary()
    first = plain.padding_from
    names = [token_name(each) for each in says]
    assert len({token_name(after), *names}) == len(names) + 1, "the next token is told by the last one alone"
    tokens = [*plain.tokens[:first], *(name for name in names if name not in plain.tokens[:first])]
    added = range(first, len(tokens))
    tokens += [f"<|pad{n}|>" for n in range(len(tokens), -(-len(tokens) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)]
    chain = tuple(tokens.index(token) for token in (token_name(after), *names, "<|end|>"))
    return replace(plain, tokens=tuple(tokens), chain=chain), added


def token_name(token: Token) -> str:
    return token if isinstance(token, str) else "".join(byte_alphabet()[byte] for byte in token)


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
