"""Texts: how bytes become one, where it is cut, and its estimated tokens."""

from __future__ import annotations

import codecs

import pytest

from retrieval.parsing.base import ChunkingOptions, ChunkSpan, ParsingError, ParsingLimits, TextBuilder
from retrieval.parsing.chunking import (
    LONGEST_HEADING,
    Heading,
    Structure,
    count_tokens_between,
    cut_text,
    estimate_tokens,
    halve_text,
)
from retrieval.parsing.media_types import decode_text

SMALL = ChunkingOptions(max_tokens=20, overlap_tokens=0)


BODY = "One two three four five six seven eight nine ten eleven twelve."


def _texts(chunks: list[ChunkSpan]) -> list[str]:
    return [chunk.text for chunk in chunks]


@pytest.mark.parametrize("options", [ChunkingOptions(0, 0), ChunkingOptions(10, 6), ChunkingOptions(10, -1)])
def test_options_out_of_range_are_refused(options: ChunkingOptions) -> None:
    with pytest.raises(ValueError, match="half of max_tokens"):
        cut_text("text", options)


@pytest.mark.parametrize("text", ["", " ", "\n\n \t\n"])
def test_blank_text_has_no_chunks(text: str) -> None:
    assert cut_text(text, SMALL) == []


def test_a_small_text_is_one_chunk_without_the_blanks_around_it() -> None:
    (chunk,) = cut_text("\n\nOne sentence. Another one.\n\n", SMALL)
    assert (chunk.start, chunk.end, chunk.text) == (2, 28, "One sentence. Another one.")
    assert chunk.headings == ()
    assert chunk.page is None


def test_offsets_count_bytes() -> None:
    (chunk,) = cut_text("\n\n  größer 漢字\n", SMALL)
    assert (chunk.start, chunk.end) == (2, len("\n\n  größer 漢字".encode()))
    assert chunk.text == "  größer 漢字"


def test_prose_is_cut_between_paragraphs_before_sentences() -> None:
    paragraph = "One two three four five. Six seven eight nine ten."
    text = f"{paragraph}\n\n{paragraph}"
    assert _texts(cut_text(text, SMALL)) == [paragraph, paragraph]


def test_a_long_paragraph_is_cut_between_sentences_also_where_lines_are_wrapped() -> None:
    text = "The first sentence is wrapped\nand ends here. The second sentence\nis as long as the first. A short one."
    assert _texts(cut_text(text, ChunkingOptions(15, 0))) == [
        "The first sentence is wrapped\nand ends here.",
        "The second sentence\nis as long as the first.",
        "A short one.",
    ]


def test_chinese_sentences_need_no_blanks() -> None:
    sentences = ["今天天气很好。", "我们去公园吧\uff01", "你想去吗\uff1f"]
    assert _texts(cut_text("".join(sentences), ChunkingOptions(8, 0))) == sentences


def test_a_sentence_that_is_too_large_is_cut_between_words() -> None:
    chunks = cut_text(" ".join(f"w{number:02}" for number in range(60)), SMALL)
    assert len(chunks) > 5
    assert all(word.startswith("w") and len(word) == 3 for chunk in chunks for word in chunk.text.split())


def test_a_giant_word_is_cut_within_it() -> None:
    chunks = cut_text("A" * 1000, SMALL)
    assert "".join(_texts(chunks)) == "A" * 1000
    assert all(estimate_tokens(chunk.text) <= 20 for chunk in chunks)


def test_a_cut_does_not_part_a_letter_from_its_accent_or_an_emoji_from_its_skin_tone() -> None:
    chunks = cut_text("n\u0303" * 300 + "\U0001f44d\U0001f3fd" * 300, SMALL)
    assert not any(chunk.text.startswith(("\u0303", "\U0001f3fd")) for chunk in chunks)


def test_markdown_carries_the_headings_above_a_chunk() -> None:
    text = f"# Guide\n\n{BODY}\n\n## Setup ##\n\n{BODY}\n\n{BODY}\n\n### Linux\n\n{BODY}\n\n# Reference\n\n{BODY}\n"
    chunks = cut_text(text, SMALL, "markdown")
    assert [(chunk.text.split("\n")[0], chunk.headings) for chunk in chunks] == [
        ("# Guide", ()),
        ("## Setup ##", ("Guide",)),
        (BODY, ("Guide", "Setup")),
        ("### Linux", ("Guide", "Setup")),
        ("# Reference", ()),
    ]


def test_headings_with_underlines() -> None:
    text = f"Guide\n=====\n\n{BODY}\n\nSetup\n-----\n\n{BODY}\n\n{BODY}\n"
    expected = [(), ("Guide",), ("Guide", "Setup")]
    assert [chunk.headings for chunk in cut_text(text, ChunkingOptions(26, 0), "markdown")] == expected


@pytest.mark.parametrize(
    "text",
    [
        "```\n# a comment\n```\n\n{BODY}\n\n{BODY}",
        "~~~~ sh\n```\n# a comment\n~~~~\n\n{BODY}\n\n{BODY}",
        "#hashtag\n\n{BODY}\n\n{BODY}",
        "####### seven\n\n{BODY}\n\n{BODY}",
        "#\n\n{BODY}\n\n{BODY}",
        "---\ntitle: text\n---\n\n{BODY}\n\n{BODY}",
        "\ufeff---\r\ntitle: text\r\n---\r\n\r\n{BODY}\n\n{BODY}",
        "{BODY}\n\n---\n\n{BODY}",
        "- item\n---\n\n{BODY}\n\n{BODY}",
        "| a | b |\n|---|---|\n\n{BODY}\n\n{BODY}",
    ],
)
def test_what_is_no_heading(text: str) -> None:
    chunks = cut_text(text.format(BODY=BODY), SMALL, "markdown")
    assert len(chunks) > 1
    assert {chunk.headings for chunk in chunks} == {()}


def test_a_long_heading_is_carried_in_part() -> None:
    chunks = cut_text(f"# {'h' * 500}\n\n{BODY}\n\n{BODY}\n\n", ChunkingOptions(120, 0), "markdown")
    assert chunks[-1].headings in ((), ("h" * LONGEST_HEADING,))


def test_a_chunk_does_not_end_with_a_heading() -> None:
    body = "One two three four five six seven eight."
    chunks = cut_text(f"{body}\n\n{body}\n\n# Heading\n\n{body}\n", ChunkingOptions(25, 0), "markdown")
    assert not any(chunk.text.endswith("Heading") for chunk in chunks)


ROWS = "".join(f"| Ann{number} | {number} |\n" for number in range(60))


@pytest.mark.parametrize(
    ("head", "rows", "header"),
    [
        ("# Staff\n\n| Name | Pay |\n| --- | --- |\n", ROWS, ("Staff", "| Name | Pay |")),
        ("Name | Pay\n:--|--:\n", ROWS.replace("| Ann", "Ann"), ("Name | Pay",)),
        # Titles over all columns stand above the row that names them.
        (
            "| Year | Year |\n|---|---|\n| 2024 |  |\n| Name | Pay |\n",
            ROWS,
            ("| Year | Year |", "| 2024 | |", "| Name | Pay |"),
        ),
        ("| a \\| b | Pay |\n|---|---|\n", ROWS, ("| a \\| b | Pay |",)),
    ],
)
def test_each_chunk_of_a_table_carries_its_header(head: str, rows: str, header: tuple[str, ...]) -> None:
    text = f"{head}{rows}\nText after.\n\n" + BODY * 9
    chunks = cut_text(text, ChunkingOptions(60, 10), "markdown")
    first, *rest = [chunk for chunk in chunks if "Ann" in chunk.text]
    assert all(each in first.text or each.replace(" | |", " |  |") in first.text for each in header[-2:])
    assert {chunk.headings for chunk in rest[:-1]} == {header}
    assert len(rest) > 5
    assert chunks[-1].headings == tuple(each for each in header if "|" not in each)
    encoded = text.encode()
    assert all(encoded[chunk.start : chunk.end].decode() == chunk.text for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("Name,Pay\n", ("Name,Pay",)),
        ("\ufeffName;Pay\r\n", ("Name;Pay",)),
        ("sep=;\nName;Pay\n", ("Name;Pay",)),
        ('Name,"Pay,\nmonthly"\n', ('Name,"Pay, monthly"',)),
        ("Country,2023,2024\n", ("Country,2023,2024",)),
        ("Name\tPay\n", ("Name\tPay",)),
        ('Name,5" disk\n', ('Name,5" disk',)),
        ('Name,"Pay\n', ('Name,"Pay',)),
        ("1,2.5\n", ()),
        ("x" * 3000 + ",y\n", ()),
    ],
)
def test_each_chunk_of_a_csv_carries_its_first_record(text: str, header: tuple[str, ...]) -> None:
    rows = "".join(f"Ann{number},{number}\n" for number in range(100))
    first, *rest = cut_text(text + rows, ChunkingOptions(60, 10), "records")
    assert first.headings == ()
    assert {chunk.headings for chunk in rest} == {header}


@pytest.mark.parametrize(
    ("text", "structure", "header"),
    [
        (";".join(f"Name {number}" for number in range(34)) + "\n", "records", ("Name 0;Name 1;Name 2;Name 3;Name 4",)),
        (
            "| Year, month | b \\| c |" + " d |" * 40 + "\n|" + "---|" * 42 + "\n",
            "markdown",
            ("| Year, month | b \\| c | d | d | d",),
        ),
        # Where titles stand above it, the row that names the columns has room first.
        (f"| {'Title ' * 7} |  |\n|---|---|\n| A{' a' * 9} | Pay |\n", "markdown", (f"| A{' a' * 9} | Pay |",)),
    ],
)
def test_a_wide_header_is_cut_behind_a_cell_to_a_quarter_of_a_chunk(
    text: str, structure: Structure, header: tuple[str, ...]
) -> None:
    _, *rest = cut_text(text + ROWS, ChunkingOptions(64, 0), structure)
    assert {chunk.headings for chunk in rest if "Ann" in chunk.text[:6]} == {header}
    assert sum(map(estimate_tokens, header)) <= 16


@pytest.mark.parametrize(
    "text", ["```\n| a | b |\n|---|---|\n{}```", "a\n\n|---|---|\n{}", "| a |\n\n| --- |\n\n{}", "a b\n|-x-|\n{}"]
)
def test_what_is_no_table_has_no_header(text: str) -> None:
    assert {chunk.headings for chunk in cut_text(text.format(ROWS), ChunkingOptions(60, 10), "markdown")} == {()}


def test_overlap_repeats_whole_sentences() -> None:
    text = "First of five. Second of five. Third of five. Fourth of five. Fifth of five."
    expected = ["First of five. Second of five. Third of five.", "Third of five. Fourth of five. Fifth of five."]
    assert _texts(cut_text(text, ChunkingOptions(14, 5))) == expected


def test_overlap_does_not_reach_over_a_heading() -> None:
    text = "First of five. Second of five. Third of five.\n\n# Next\n\nFourth of five. Fifth of five."
    assert _texts(cut_text(text, ChunkingOptions(14, 6), "markdown"))[1].startswith("# Next")


def test_code_is_cut_before_what_stands_at_the_margin() -> None:
    function = "def run(a):\n    b = a\n\n    return b\n"
    chunks = cut_text(f"{function}\n\n{function}\n\n{function}", ChunkingOptions(20, 0), "lines")
    assert _texts(chunks) == [function.rstrip()] * 3


def test_code_keeps_the_indentation_of_a_first_line() -> None:
    chunks = cut_text("class A:\n" + "    x = 1\n" * 20, ChunkingOptions(10, 0), "lines")
    assert chunks[1].text.startswith("    x = 1")


def test_a_chunk_knows_the_page_that_it_begins_on() -> None:
    pages = ["One two three four five six seven eight nine ten.", "", "Eleven twelve thirteen fourteen.", "Fifteen."]
    starts, text = [], ""
    for page in pages:
        starts.append(len(text))
        text += page + "\n\n"
    assert [chunk.page for chunk in cut_text(text, ChunkingOptions(14, 0), "prose", starts)] == [1, 3]


@pytest.mark.parametrize("text", ["\ufeff# Title\n\nText.", "\ufeff\n# Title\n\nText."])
def test_a_byte_order_mark_is_in_no_chunk_and_hides_no_heading(text: str) -> None:
    (chunk,) = cut_text(text, SMALL, "markdown")
    assert (chunk.text, chunk.headings) == ("# Title\n\nText.", ())
    assert text.encode()[chunk.start : chunk.end].decode() == chunk.text
    assert cut_text(text, ChunkingOptions(3, 0), "markdown")[1].headings == ("Title",)


def test_headings_that_are_given_count_as_those_of_markdown() -> None:
    text = f"1 Guide\n{BODY}\n1.1 Setup\n{BODY}\n{BODY}\n2 Reference\n{BODY}\n"
    headings = [Heading(text.index(title), level, title) for title, level in (("1 G", 1), ("1.1", 2), ("2 R", 1))]
    chunks = cut_text(text, ChunkingOptions(25, 8), "prose", (), headings)
    expected = [("1 Guide", ()), ("1.1 Setup", ("1 G",)), (BODY, ("1 G", "1.1")), ("2 Reference", ())]
    assert [(chunk.text.split("\n")[0], chunk.headings) for chunk in chunks] == expected


@pytest.mark.parametrize(
    ("text", "halves"),
    [
        ("one two three four", ("one two ", "three four")),
        ("abcdefgh", ("abcd", "efgh")),
        ("abc" + "\u0301" * 2 + "d", ("ab", "c" + "\u0301" * 2 + "d")),
        ("\U0001f469\u200d\U0001f4bb" * 3, ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb" * 2)),
        ("e" + "\u0301" * 7, ("e" + "\u0301" * 3, "\u0301" * 4)),
        ("a", None),
        ("", None),
    ],
)
def test_a_text_is_halved_where_it_parts_least(text: str, halves: tuple[str, str] | None) -> None:
    assert halve_text(text) == halves
    assert halves is None or "".join(halves) == text


EUROPEAN = "Die Miete für die Büroräume ist monatlich auf das Konto des Vermieters zu überweisen. "
TEXT = "Grüße, naïve “quotes”, 5 €\n" * 5


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (TEXT.encode(), TEXT),
        (codecs.BOM_UTF8 + TEXT.encode(), "\ufeff" + TEXT),
        *((data, TEXT) for data in (TEXT.encode("utf-16"), codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"))),
        *((data, TEXT) for data in (TEXT.encode("utf-32"), TEXT.encode("utf-16-le"), TEXT.encode("utf-16-be"))),
        *(
            (data, EUROPEAN)
            for data in (EUROPEAN.encode("cp1252"), EUROPEAN.encode("cp437"), EUROPEAN.encode("mac_roman"))
        ),
        ("Die Grüße kamen gestern aus Köln.\n".encode("latin-1"), "Die Grüße kamen gestern aus Köln.\n"),
        ("漢字かな。".encode() + b"\xe6", "漢字かな。\ufffd"),
        (b"a\x1b[0m\x08\x0c\x07", "a\x1b[0m\x08\x0c\x07"),
        (b"", ""),
    ],
)
def test_encodings_are_recognised(data: bytes, text: str) -> None:
    assert decode_text(data) == text


@pytest.mark.parametrize("declared", ["koi8-r", "KOI8-R"])
def test_a_declared_encoding_is_used(declared: str) -> None:
    assert decode_text("Привет, мир".encode("koi8-r"), declared) == "Привет, мир"


@pytest.mark.parametrize("declared", ["unknown", "hex", "utf-8", "utf-7", "punycode", "", "\x00", "euc-jp"])
def test_a_declared_encoding_that_is_unknown_or_wrong_is_passed_over(declared: str) -> None:
    assert decode_text(EUROPEAN.encode("latin-1"), declared) == EUROPEAN


@pytest.mark.parametrize(
    ("data", "declared", "text"),
    [
        ("Grüße".encode(), "latin-1", "GrÃ¼ÃŸe"),
        ("“Grüße” 5 €".encode("cp1252"), "iso-8859-1", "“Grüße” 5 €"),
        ("漢字".encode("gbk"), "gb2312", "漢字"),
        ("똠방각하".encode("cp949"), "euc-kr", "똠방각하"),
        ("賃料".encode("iso2022_jp"), "ISO-2022-JP", "賃料"),
        (codecs.BOM_UTF8 + "Grüße".encode(), "latin-1", "\ufeffGrüße"),
        (codecs.BOM_UTF16_LE + "Grüße".encode("utf-16-le"), "latin-1", "Grüße"),
    ],
)
def test_a_declaration_wins_over_all_but_a_byte_order_mark(data: bytes, declared: str, text: str) -> None:
    assert decode_text(data, declared) == text


def test_a_short_text_in_nobody_knows_which_encoding_is_refused_and_says_how_to_send_it() -> None:
    for data in ("Dziękuję".encode("cp1250"), "合同".encode("gbk") * 4):
        with pytest.raises(ParsingError, match="charset=windows-1250") as raised:
            decode_text(data)
        assert raised.value.code == "document_not_text"


LEASES = {
    "Договор аренды нежилого помещения. Арендатор платит каждый месяц.": ("cp1251", "koi8-r", "cp866", "iso8859-5"),
    "Umowa najmu lokalu. Najemca płaci czynsz co miesiąc, źródło: księga.": ("cp1250", "iso8859-2"),
    "Ο μισθωτής πληρώνει το ενοίκιο κάθε μήνα.": ("cp1253", "iso8859-7"),  # noqa: RUF001 - it is Greek
    "Kiracı her ayın beşinci gününe kadar kirayı öder.": ("cp1254",),  # noqa: RUF001 - Turkish has it
    "يدفع المستأجر الإيجار كل شهر قبل الخامس.": ("cp1256",),
    "השוכר ישלם את דמי השכירות בכל חודש.": ("cp1255",),
    "ผู้เช่าต้องชำระค่าเช่าทุกเดือน": ("cp874",),
    "租赁合同。承租人应当于每月五日前支付租金。": ("gbk", "gb18030", "hz"),
    "租賃合約。承租人應於每月五日前支付租金。": ("big5",),
    "借主は毎月五日までに賃料を支払うものとする。": ("euc_jp", "shift_jis", "cp932", "iso2022_jp"),
    "임차인은 매월 오일까지 임대료를 지급하여야 한다.": ("cp949", "euc_kr", "iso2022_kr"),
}


@pytest.mark.parametrize(("text", "encoding"), [(text, each) for text, found in LEASES.items() for each in found])
def test_an_encoding_that_nobody_declared_is_detected(text: str, encoding: str) -> None:
    assert decode_text(text.encode(encoding)) == text


@pytest.mark.parametrize(
    "data", [bytes(100), b"text" + bytes(4), bytes(range(256)) * 4, b"\xff\xfe\x00", b"\x81" * 100]
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(ParsingError) as raised:
        decode_text(data)
    assert raised.value.code == "document_not_text"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("word", 1),
        ("words, words", 3),
        ("tokenizer", 2),
        ("größer", 2),
        ("2026-11-23", 6),
        ("漢字かな", 4),
        ("Привет", 3),
        ("สวัสดี", 6),
        ("a_b", 3),
        (" " * 32, 2),
        ("\n" * 32, 2),
        ("x" * 50, 10),
    ],
)
def test_tokens_of_a_text(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_tokens_between_two_characters() -> None:
    assert count_tokens_between("one two three", 4, 7) == 1


def test_blank_lines_and_blocks_change_nothing() -> None:
    builder = TextBuilder(ParsingLimits())
    builder.add_line("- a")
    builder.add_block(" ")
    builder.add_line("- b")
    builder.add_block("P")
    builder.add_line("\n")
    builder.add_line("- c")
    assert builder.build() == "- a\n- b\n\nP\n\n- c"
