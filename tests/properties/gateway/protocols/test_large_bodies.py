"""Large bodies are sent on as they came, and the least tokens of a text are never more than a tokenizer makes of it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.errors import RoundhouseError
from controller.artifacts.heads import measure_tokenizer
from gateway.protocols.common.capabilities import check_length
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import InferenceRequest
from tests.fakes.fake_controller import route
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from worker.clockwork import SENTENCE, SPECIAL, make_vocabulary

PIECES = ['"', "\\", '\\"', "\n", "\x00", "u0041", "{", '":"', "},", "ä", "敏", "😀", "true", "0", " ", "\ud83d"]
PIECES += ["plain text, and more of it ", "aGVsbG8gd29ybGQ", "\x01roundhouse-left-out-000000;", "\\u0001", "}]"]
patterns = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=6).map("".join).filter(bool)
long_texts = st.builds(lambda pattern, size: pattern * (size // len(pattern) + 1), patterns, st.integers(0, 40_000))
leaves = long_texts | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(patterns, inner, max_size=3), max_leaves=5
)
part_sizes = st.sampled_from([1 << 10, 50_001, 1 << 20])


def body_of(raw: bytes, part_bytes: int) -> LargeBody:
    """In parts of this size."""
    body = LargeBody()
    for start in range(0, len(raw), part_bytes):
        body.add_part(raw[start : start + part_bytes])
    body.finish()
    return body


@settings(max_examples=campaign_count(60, 5_000), deadline=None)
@given(values, st.booleans(), part_sizes)
def test_valid_bodies_come_back_whole(value: Any, is_ascii: bool, part_bytes: int) -> None:
    fields = {"model": "m", "value": value}
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    body = body_of(raw, part_bytes)
    assert b"".join(body.fill(body.outline)) == body.join() == raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return  # half a pair of surrogates, as bytes: no JSON
    outline = json.loads(body.outline)
    nested = json.dumps({"arguments": json.dumps(outline)}).encode()
    assert json.loads(json.loads(b"".join(body.fill(nested)))["arguments"]) == json.loads(raw)
    body.fill_fields(outline, kept_names=())
    assert outline == json.loads(raw)


@settings(max_examples=campaign_count(60, 5_000), deadline=None)
@given(st.lists(patterns | long_texts, min_size=1, max_size=6), part_sizes)
def test_of_invalid_bodies_nothing_ends_the_string_that_it_is_put_into(pieces: list[str], part_bytes: int) -> None:
    raw = b'{"model":"m","value":' + "".join(pieces).encode("utf-8", "surrogatepass")
    body = body_of(raw, part_bytes)
    assert b"".join(body.fill(body.outline)) == raw
    # Of what cannot be read, nothing is sent on; but what is left out could be put into another string all the same.
    for mark in {each.split(b";")[0] + b";" for each in body.outline.split(b"\\u0001roundhouse")[1:]}:
        filled = b"".join(body.fill(b'{"a":"\\u0001roundhouse%b","b":1}' % mark))
        inside = filled.removeprefix(b'{"a":"').removesuffix(b'","b":1}')
        rest = re.sub(rb"\\.", b"", inside, flags=re.DOTALL)
        assert b'"' not in rest
        assert b"\\" not in rest, "it ends with half an escape"


TOKENS: Final = (
    "<unk>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "▁▁",
    "▁▁▁▁",
    *"helowrd",
    "he",
    "▁he",
)


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
        {piece: number for number, piece in enumerate(TOKENS)},
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
