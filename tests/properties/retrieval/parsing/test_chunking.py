"""What holds of every chunk of every text."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from retrieval.parsing.base import ChunkingOptions, ChunkSpan
from retrieval.parsing.chunking import Structure, cut_text, estimate_tokens

WORDS = st.sampled_from(
    [
        *(
            "word",
            "Sentence",
            "ends.",
            "Ends!",
            "größer",
            "漢字。",
            "かな",
            "Привет",
            "e\u0301",
            "\U0001f44d\U0001f3fd",
        ),
        *(
            "1234567",
            "a" * 37,
            "!?",
            "```",
            "~~~",
            "# ",
            "## ",
            "===",
            "---",
            "- ",
            "| a |",
            "|---|",
            '"',
            "}",
            "    ",
            " " * 40,
        ),
        *("\n" * 40, "\t", "\r\n", "\x0c", "\u2028", "\u00a0", "\x00", "\ufeff"),
    ]
)
TEXTS = st.one_of(
    st.lists(st.tuples(WORDS, st.sampled_from(["", " ", "\n", "\n\n", "\n\n\n    "])), max_size=60).map(
        lambda pairs: "".join(word + gap for word, gap in pairs)
    ),
    st.text(st.characters(codec="utf-8"), max_size=200),
)
STRUCTURES: st.SearchStrategy[Structure] = st.sampled_from(["markdown", "prose", "lines", "records"])


@st.composite
def _options(draw: st.DrawFn) -> ChunkingOptions:
    most = draw(st.integers(1, 60))
    return ChunkingOptions(most, draw(st.integers(0, most // 2)))


@given(TEXTS, _options(), STRUCTURES)
def test_every_chunk_is_the_text_between_its_offsets(text: str, options: ChunkingOptions, structure: Structure) -> None:
    data = text.encode()
    for chunk in cut_text(text, options, structure):
        assert data[chunk.start : chunk.end].decode() == chunk.text
        assert chunk.text.strip()


@given(TEXTS, _options(), STRUCTURES)
def test_chunks_are_in_order_and_bounded(text: str, options: ChunkingOptions, structure: Structure) -> None:
    chunks = cut_text(text, options, structure)
    assert all(estimate_tokens(chunk.text) <= options.max_tokens for chunk in chunks)
    for chunk, following in pairwise(chunks):
        assert chunk.start < following.start
        assert chunk.end < following.end


@given(TEXTS, _options(), STRUCTURES)
def test_overlap_is_bounded(text: str, options: ChunkingOptions, structure: Structure) -> None:
    data = text.encode()
    chunks = cut_text(text, options, structure)
    for chunk, following in pairwise(chunks):
        assert (
            estimate_tokens(data[following.start : max(following.start, chunk.end)].decode()) <= options.overlap_tokens
        )


@given(TEXTS, _options(), STRUCTURES)
def test_every_character_that_is_not_blank_is_in_a_chunk(
    text: str, options: ChunkingOptions, structure: Structure
) -> None:
    assert _left_out(text, cut_text(text, options, structure)).removeprefix("\ufeff").strip() == ""


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=20), _options())
def test_headings_are_those_above_a_chunk(sections: list[tuple[int, int]], options: ChunkingOptions) -> None:
    text = ""
    above: dict[str, tuple[str, ...]] = {}
    path: list[tuple[int, str]] = []
    for number, (level, words) in enumerate(sections):
        path = [each for each in path if each[0] < level] + [(level, f"h{number}")]
        above[f"body{number}"] = tuple(title for _, title in path)
        text += f"{'#' * level} h{number}\n\n" + f"body{number} " * words + "\n\n"
    for chunk in cut_text(text, options, "markdown"):
        first = chunk.text.split()[0]
        if first in above:
            assert chunk.headings == above[first]


@given(TEXTS, _options(), st.lists(st.integers(0, 200), max_size=5))
def test_pages_are_where_a_chunk_begins(text: str, options: ChunkingOptions, cuts: list[int]) -> None:
    starts = sorted({0} | {at for at in cuts if at < len(text) and text[at - 1 : at] == "\n"})
    data = text.encode()
    for chunk in cut_text(text, options, "prose", starts):
        begin = len(data[: chunk.start].decode())
        assert chunk.page == sum(start <= begin for start in starts)


def _left_out(text: str, chunks: list[ChunkSpan]) -> str:
    data, left_out, done = text.encode(), "", 0
    for chunk in chunks:
        left_out += data[done : max(done, chunk.start)].decode()
        done = max(done, chunk.end)
    return left_out + data[done:].decode()
