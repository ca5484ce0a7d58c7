"""The least tokens of a text are never more than a real tokenizer makes of it."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.artifacts.vocabulary import measure_tokenizer
from controller.schema.errors import RoundhouseError
from gateway.protocols.common.prompt_length import check_length
from gateway.protocols.common.request import InferenceRequest
from tests.fakes.fake_controller import route
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from worker.clockwork import SENTENCE, SPECIAL, make_vocabulary

PIECES: Final = ("<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "▁▁▁▁", *"helowrd", "he", "▁he")


def byte_level() -> Any:
    """The clockwork model's, with a token of 16 spaces and special tokens that take white space along."""
    vocabulary = make_vocabulary()
    merges, tokens = list(vocabulary.merges), {token: number for number, token in enumerate(vocabulary.tokens)}
    for length in (1, 2, 4, 8):
        merges.append(("Ġ" * length, "Ġ" * length))
        tokens.setdefault("Ġ" * 2 * length, len(tokens))
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE(tokens, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([tokenizers.AddedToken(token, lstrip=True, rstrip=True) for token in SPECIAL])
    return made


def composing() -> Any:
    """The same, of a model whose texts are composed first."""
    made = byte_level()
    made.normalizer = tokenizers.normalizers.NFC()
    return made


def sentence_piece() -> Any:
    """In the manner of Llama 2 and Gemma."""
    merges = [("h", "e"), ("▁", "he"), ("▁", "▁"), ("▁▁", "▁▁")]
    model = tokenizers.models.BPE(
        {piece: number for number, piece in enumerate(PIECES)},
        merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    made: Any = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens(["<unk>"])
    return made


TOKENIZERS: Final = {make.__name__: make() for make in (byte_level, composing, sentence_piece)}
LONGEST: Final = {name: measure_tokenizer(made.to_str().encode()) for name, made in TOKENIZERS.items()}
PARTS: Final = st.one_of(
    st.text(max_size=20),
    st.sampled_from([*SPECIAL, SENTENCE, " " * 40, "\n" * 40, "▁" * 40, "<unk>", "<0x41>", "hehe", "ΐ" * 9, "K" * 9]),
    st.characters(codec="utf-8").map(lambda character: character * 30),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(PARTS, max_size=8))
@settings(max_examples=campaign_count(60, 20_000))
@example(parts=["\u1fbe\u0308\u0301" * 30])
@example(parts=[SPECIAL[0] * 40])
@example(parts=["▁" * 400])
def test_a_prompt_that_fits_is_never_refused(name: str, parts: list[str]) -> None:
    text = "".join(parts).encode(errors="replace").decode()
    longest = present(LONGEST[name])
    tokens = len(TOKENIZERS[name].encode(text).ids)
    fields = {"prompt": text}
    asked = InferenceRequest(json.dumps(fields).encode(), fields, "m", stream=False, wants_usage=False)
    check_length(asked, route("m", context_length=max(1, tokens), longest_token=longest))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bound_is_reached(name: str) -> None:
    longest = present(LONGEST[name])
    fields = {"prompt": "x" * (100 * longest + 1)}
    asked = InferenceRequest(json.dumps(fields).encode(), fields, "m", stream=False, wants_usage=False)
    with pytest.raises(RoundhouseError):
        check_length(asked, route("m", context_length=100, longest_token=longest))
