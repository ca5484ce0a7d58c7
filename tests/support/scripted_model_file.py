"""A clockwork model that says what a test wants, token by token, with a chat template of the test's."""

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
from worker.text.token_reader import byte_alphabet

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
