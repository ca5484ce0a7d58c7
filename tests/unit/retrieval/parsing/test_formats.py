"""What is read of a file beside its main text, tables in each format, and OpenDocument, RTF and gzip."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from retrieval.parsing.base import Cell, ParsingError, ParsingLimits, Table
from retrieval.parsing.formats.office import is_date_format
from retrieval.parsing.formats.pdf import order_line
from retrieval.parsing.worker import extract_file
from tests.support.document_files import (
    make_docx,
    make_odf,
    make_office,
    make_pdf,
    make_pdf_as_seen,
    make_pdf_with_annotations,
    make_zip,
)

LIMITS = ParsingLimits(max_text_bytes=100_000, max_pages=50)
Extract = Callable[..., str]


@pytest.fixture(name="extract")
def _extract(tmp_path: Path) -> Extract:
    def extract(data: bytes | str, name: str, limits: ParsingLimits = LIMITS) -> str:
        path = tmp_path / "file"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return extract_file(path, name, None, limits).text

    return extract


def _docx(*rows: list[tuple[str, str]]) -> bytes:
    """One with a table: texts of cells, and their properties."""
    lines = (
        "".join(f"<tc><tcPr>{more}</tcPr><p><r><t>{text}</t></r></p></tc>" for text, more in cells) for cells in rows
    )
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return make_docx(body=re.sub(r"<(/?)", r"<\1w:", f"<tbl>{table}</tbl>"))


def _pptx_table(*rows: list[tuple[str, str]]) -> bytes:
    """One with a table: texts of cells, and their attributes."""
    lines = ("".join(f"<tc {more}><p><r><t>{text}</t></r></p></tc>" for text, more in cells) for cells in rows)
    return _pptx("<tbl>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</tbl>")


def _odt_table(*rows: list[tuple[str, str]]) -> bytes:
    """One with a table: texts of cells, and their attributes; `-` is a cell that another covers."""
    lines = (
        "".join(
            "<covered-table-cell/>" if text == "-" else f"<table-cell {more}><q>{text}</q></table-cell>"
            for text, more in cells
        )
        for cells in rows
    )
    table = "".join(f"<table-row>{line}</table-row>" for line in lines)
    body = re.sub(r"<(/?)(table|covered)", r"<\1table:\2", f"<table>{table}</table>")
    return make_odf("text", body.replace("<q>", "<text:p>").replace("</q>", "</text:p>"))


def _plain(*rows: str) -> list[list[tuple[str, str]]]:
    return [[(text, "") for text in row.split("/")] for row in rows]


def _pptx(shapes: str, parts: dict[str, str] | None = None, beside: list[tuple[str, str]] | None = None) -> bytes:
    main = '<p xmlns:r="r"><sldIdLst><sldId r:id="rId1"/></sldIdLst></p>'
    slide = "ppt/slides/a.xml"
    return make_office(
        "ppt/presentation.xml",
        {"ppt/presentation.xml": main, slide: f"<sld>{shapes}</sld>", **(parts or {})},
        {
            "ppt/presentation.xml": [
                ("slide", slide),
                *((k, n) for k, n in beside or () if k.lower().endswith("authors")),
            ],
            slide: [(k, n) for k, n in beside or () if not k.lower().endswith("authors")],
        },
    )


def _xlsx(sheet: str, parts: dict[str, str] | None = None, beside: list[tuple[str, str]] | None = None) -> bytes:
    main = '<w xmlns:r="r"><sheets><sheet name="S" r:id="rId1"/></sheets></w>'
    return make_office(
        "xl/workbook.xml",
        {"xl/workbook.xml": main, "xl/a.xml": f"<worksheet>{sheet}</worksheet>", **(parts or {})},
        {
            "xl/workbook.xml": [("worksheet", "xl/a.xml"), *((k, n) for k, n in beside or () if k == "person")],
            "xl/a.xml": [(k, n) for k, n in beside or () if k != "person"],
        },
    )


def _xlsx_row(number: int, *cells: str) -> str:
    inner = "".join(f'<c r="{place}" t="str"><v>{text}</v></c>' for place, text in (each.split("=") for each in cells))
    return f'<row r="{number}">{inner}</row>'


PIPES = "| Name | Rule |\n| --- | --- |\n| OR | a \\| b |"
MERGED = "| Team | Q1 | Q1 |\n| --- | --- | --- |\n| Rail | 1 | 2 |\n| Rail | 3 | 4 |"
SIMPLE = _plain("Name/Rule", "OR/a | b")
HTML = (
    "<table><tr><th>Name<th>Rule<tr><td>OR<td>a | b</table>",
    "<table><tr><th>Team<th colspan=2>Q1<tr><td rowspan=2>Rail<td>1<td>2<tr><td>3<td>4</table>",
)
MAIL = "From: a@b.org\nSubject: s\nContent-Type: text/html\n\n"
SPANNED = [("Team", ""), ("Q1", 'table:number-columns-spanned="2"'), ("-", "")]
TABLES: dict[str, tuple[bytes | str, bytes | str]] = {
    "docx": (
        _docx(*SIMPLE),
        _docx(
            [("Team", ""), ("Q1", '<gridSpan w:val="2"/>')],
            [("Rail", '<vMerge w:val="restart"/>'), ("1", ""), ("2", "")],
            [("", "<vMerge/>"), ("3", ""), ("4", "")],
        ),
    ),
    "pptx": (
        _pptx_table(*SIMPLE),
        _pptx_table(
            [("Team", ""), ("Q1", 'gridSpan="2"'), ("", 'hMerge="1"')],
            [("Rail", 'rowSpan="2"'), ("1", ""), ("2", "")],
            [("", 'vMerge="1"'), ("3", ""), ("4", "")],
        ),
    ),
    "xlsx": (
        _xlsx(_xlsx_row(1, "A1=Name", "B1=Rule") + _xlsx_row(2, "A2=OR", "B2=a | b")),
        _xlsx(
            _xlsx_row(1, "A1=Team", "B1=Q1")
            + _xlsx_row(2, "A2=Rail", "B2=1", "C2=2")
            + _xlsx_row(3, "B3=3", "C3=4")
            + '<mergeCells><mergeCell ref="B1:C1"/><mergeCell ref="A2:A3"/></mergeCells>'
        ),
    ),
    "html": HTML,
    "eml": (MAIL + HTML[0], MAIL + HTML[1]),
    "odt": (
        _odt_table(*SIMPLE),
        _odt_table(
            SPANNED,
            [("Rail", 'table:number-rows-spanned="2"'), ("1", ""), ("2", "")],
            [("-", ""), ("3", ""), ("4", "")],
        ),
    ),
    "rtf": (
        r"{\rtf1 \trowd\cellx1\cellx2 Name\cell Rule\cell\row OR\cell a | b\cell\row}",
        r"{\rtf1 \trowd\cellx1\cellx2\clmrg\cellx3 Team\cell Q1\cell\cell\row"
        r"\trowd\clvmgf\cellx1\cellx2\cellx3 Rail\cell 1\cell 2\cell\row"
        r"\trowd\clvmrg\cellx1\cellx2\cellx3 \cell 3\cell 4\cell\row}",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_pipe_in_a_cell_is_escaped_and_a_table_has_a_line_below_its_header(extract: Extract, name: str) -> None:
    assert extract(TABLES[name][0], f"a.{name}").endswith(PIPES)


@pytest.mark.parametrize("name", TABLES)
def test_merged_cells_repeat_their_text_in_all_columns_and_rows(extract: Extract, name: str) -> None:
    assert extract(TABLES[name][1], f"a.{name}").endswith(MERGED)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["a"], ["b", "c", "d"]], "| a |  |  |\n| --- | --- | --- |\n| b | c | d |"),
        ([["", " "], ["a", "b\nc"], ["d"]], "| a | b c |\n| --- | --- |\n| d |  |"),
        ([["a | b"]], "a | b"),
        ([], ""),
    ],
)
def test_each_row_has_the_columns_of_its_table(rows: list[list[str]], text: str) -> None:
    table = Table(LIMITS)
    for row in rows:
        table.add_texts(row)
    assert table.render() == text


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("<table><td># 1", "a.html"),
        (_docx([("# 1", "")]), "a.docx"),
        (_pptx_table([("# 1", "")]), "a.pptx"),
        (r"{\rtf1{\footnote # 1}}", "a.rtf"),
        (make_odf("text", "<office:annotation><text:p># 1</text:p></office:annotation>"), "a.odt"),
    ],
)
def test_what_stands_alone_is_no_heading(extract: Extract, data: bytes | str, name: str) -> None:
    assert extract(data, name) in ("\\# 1", "Comment: # 1")


def test_a_long_text_and_a_title_over_all_columns_are_not_repeated() -> None:
    table = Table(LIMITS)
    table.add_row([Cell("Title", columns=1000)])
    table.add_row([Cell("x" * 201, rows=2), Cell("b", columns=2)])
    table.add_row([Cell("c"), Cell("d")])
    assert table.render() == (f"| Title |  |  |\n| --- | --- | --- |\n| {'x' * 201} | b | b |\n|  | c | d |")


def test_a_long_text_is_not_repeated_in_a_cell_that_continues_it() -> None:
    table = Table(LIMITS)
    for text in ("x" * 201, "", "y", ""):
        table.add_row([Cell(text, is_continued=not text), Cell("b")])
    lines = table.render().split("\n")
    assert lines[2:] == ["|  | b |", "| y | b |", "| y | b |"]


def test_a_merged_cell_may_lie_over_one_that_reaches_down() -> None:
    table = Table(LIMITS)
    table.add_row([Cell("a"), Cell("b", rows=2), Cell("c"), Cell("d", rows=2)])
    table.add_row([Cell("e", columns=2)])
    table.add_row([Cell("f", columns=2), Cell("g")])
    assert table.render().split("\n")[2:] == ["| e | b |  | d |", "| f | f | g |  |"]
    table.add_row([Cell("a"), Cell("b", rows=2), Cell("c")])
    table.add_row([Cell("f", columns=2), Cell("g")])


@pytest.mark.parametrize(
    "rows",
    [[Cell("a", rows=10**6)] * 10**5, [Cell("a" * 100, columns=10**5), Cell("b")] * 10**4],
    ids=["rows", "columns"],
)
def test_a_table_that_grows_beyond_the_text_is_refused(rows: list[Cell]) -> None:
    table = Table(LIMITS)
    with pytest.raises(ParsingError) as raised:
        table.add_row(rows)
    assert raised.value.code == "document_too_large"


def test_a_sheet_has_a_header_for_each_of_its_tables(extract: Extract) -> None:
    sheet = (
        _xlsx_row(1, "A1=Name", "B1=Pay")
        + _xlsx_row(2, "A2=Ann", "B2=12")
        + _xlsx_row(4, "A4=Bob", "B4=13")  # a gap alone ends no table
        + _xlsx_row(7, "A7=Room", "B7=Floor", "C7=Key")
        + _xlsx_row(8, "A8=Hall", "B8=1", "C8=red")
    )
    assert extract(_xlsx(sheet), "a.xlsx") == (
        "# S\n\n| Name | Pay |\n| --- | --- |\n| Ann | 12 |\n| Bob | 13 |\n\n"
        "| Room | Floor | Key |\n| --- | --- | --- |\n| Hall | 1 | red |"
    )


HOSTILE: dict[str, tuple[Callable[[], bytes | str], str]] = {
    "rows that reach down": (lambda: "<table>" + "<td rowspan=9999>" * 9000 + "<tr><td>" * 9000, "a.html"),
    "gaps between them": (lambda: "<table>" + "<td rowspan=9><td>" * 40_000 + "<tr><td>x", "a.html"),
    "one cell of a document": (lambda: _docx([("</t></r></p><p><r><t>".join(["some words"] * 150_000), "")]), "a.docx"),
    "one cell of an ODT": (lambda: _odt_table([("</q><q>".join(["some words"] * 150_000), "")]), "a.odt"),
    "members of gzip": (lambda: gzip.compress(b"") * 200_000 + gzip.compress(b"text"), "a.txt.gz"),
    "merged cells": (
        lambda: _xlsx(
            "".join(_xlsx_row(number, f"A{number}=x", f"B{number}=y") for number in range(1, 9000))
            + "<mergeCells>" + '<mergeCell ref="A1:B1048576"/>' * 9000 + "</mergeCells>"
        ),
        "a.xlsx",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_small_hostile_file_takes_no_minutes(extract: Extract, kind: str) -> None:
    make, name = HOSTILE[kind]
    data, before = make(), time.process_time()
    with suppress(ParsingError):
        extract(data, name, ParsingLimits(max_text_bytes=2_000_000))
    assert time.process_time() - before < 6


def test_a_format_of_brackets_takes_no_time() -> None:
    before = time.process_time()
    assert not is_date_format("[" * 100_000)
    assert time.process_time() - before < 2


def _word(paragraphs: str) -> str:
    return f"<d><p><r><t>{paragraphs}</t></r></p></d>"


def test_a_document_s_headers_comments_notes_and_boxes_are_read_once(extract: Extract) -> None:
    body = (
        "<p><ins><r><t>new</t></r></ins><del><r><t>old</t></r></del><moveFrom><r><t>moved</t></r></moveFrom>"
        "<r><pict><textbox><txbxContent><p><r><t>box</t></r></p></txbxContent></textbox></pict></r>"
        "<ruby><rt><r><t>reading</t></r></rt><rubyBase><r><t> base</t></r></rubyBase></ruby></p>"
    )
    parts = {
        "word/document.xml": f"<d>{body}</d>",
        **{f"word/header{number}.xml": _word("Top") for number in range(3)},
        "word/footer.xml": _word("Bottom"),
        "word/footnotes.xml": _word("Note"),
        "word/comments.xml": '<c><comment author="Ann"><p><r><t>why?</t></r></p></comment></c>',
    }
    kinds = {"header0": "header", "header1": "header", "header2": "header"}
    beside = [(kinds.get(name, name), f"word/{name}.xml") for name in ("footer", "comments", "footnotes", *kinds)]
    found = extract(make_office("word/document.xml", parts, {"word/document.xml": beside}), "a.docx")
    assert found == "Top\n\nbox\n\nnew base\n\nNote\n\nComment by Ann: why?\n\nBottom"


def test_fields_of_a_form_in_a_document_say_what_is_chosen(extract: Extract) -> None:
    box = "<checkBox><default w:val='0'/>{}</checkBox>"
    fields = (
        "<ddList><result w:val='1'/><listEntry w:val='red'/><listEntry w:val='blue'/></ddList>",
        "<ddList><listEntry w:val='red'/></ddList>",
        box.format("<checked/>"),
        box.format("<checked w:val='0'/>"),
        box.format(""),
    )
    body = "".join(f"<p><r><fldChar><ffData>{each}</ffData></fldChar></r></p>" for each in fields)
    assert extract(make_docx(body=re.sub(r"<(/?)", r"<\1w:", body)), "a.docx").split() == [
        "blue",
        "red",
        *"\u2612\u2610\u2610",
    ]


CHART = """<c><chart>
<title><p><r><t>Coal</t></r><r><t> used</t></r></p></title><ser><tx><strRef><strCache><pt idx="0"><v>t
</v></pt></strCache></strRef></tx><cat><numRef><f>A1</f><numCache><formatCode>yyyy</formatCode>
<pt idx="0"><v>45292</v></pt><pt idx="1"><v>45293</v></pt></numCache></numRef></cat>
<val><numCache><pt idx="1"><v>2.50</v></pt></numCache></val>
</ser><ser><tx><v>u|v</v></tx><val><numCache><pt idx="0"><v>7</v></pt></numCache></val></ser></chart></c>"""
CHART_TEXT = "Coal used\n\n|  | t | u\\|v |\n| --- | --- | --- |\n| 2024-01-01 |  | 7 |\n| 2024-01-02 | 2.5 |  |"


def test_a_slide_s_charts_diagrams_comments_and_notes_are_read(extract: Extract) -> None:
    parts = {
        "ppt/c.xml": CHART,
        "ppt/d.xml": "<d><pt><t><p><r><t>Step one</t></r></p></t></pt></d>",
        "ppt/old.xml": '<l><cm authorId="0"><text>old way</text></cm></l>',
        "ppt/new.xml": '<l><cm authorId="{1}"><replyLst><reply authorId="0"><txBody><p><t>yes</t></p></txBody></reply>'
        "</replyLst><txBody><p><t>right?</t></p></txBody></cm></l>",
        "ppt/a.xml": '<l><cmAuthor id="0" name="Ann"/></l>',
        "ppt/b.xml": '<l><author id="{1}" name="Bob"/></l>',
        "ppt/n.xml": "<notes><sp><p><r><t>speak up</t></r></p></sp></notes>",
    }
    kinds = ("chart", "diagramData", "comments", "comments", "commentAuthors", "authors", "notesSlide")
    found = extract(_pptx("<sp><p><r><t>text</t></r></p></sp>", parts, list(zip(kinds, parts, strict=True))), "a.pptx")
    assert found == (
        f"text\n\n{CHART_TEXT}\n\nStep one\n\nComment by Ann: old way\n\nComment by Ann: yes\n\nComment by Bob: right?"
        "\n\nspeak up"
    )


def test_a_sheet_s_boxes_charts_and_comments_are_read(extract: Extract) -> None:
    parts = {
        "xl/d.xml": "<d><AlternateContent><Choice><sp><p><r><t>box</t></r></p></sp></Choice>"
        "<Fallback><p><r><t>box</t></r></p></Fallback></AlternateContent></d>",
        "xl/c.xml": CHART,
        "xl/l.xml": '<c><authors><author>Ann</author><author>tc={1}</author></authors><comment ref="B2" authorId="0">'
        "<text><r><t>Ann:</t></r><r><t> odd</t></r></text></comment>"
        '<comment ref="C3" authorId="1"><text><t>[Threaded]</t>'
        "</text></comment></c>",
        "xl/t.xml": '<T><threadedComment ref="C3" personId="{1}"><text>really?</text></threadedComment></T>',
        "xl/p.xml": '<p><person displayName="Bob" id="{1}"/></p>',
    }
    beside = [
        ("drawing", "xl/d.xml"),
        ("comments", "xl/l.xml"),
        ("threadedComment", "xl/t.xml"),
        ("person", "xl/p.xml"),
    ]
    data = _xlsx(_xlsx_row(1, "A1=x"), parts, beside)
    assert extract(data, "a.xlsx") == (
        "# S\n\nx\n\nbox\n\nComment on B2 by Ann: Ann: odd\n\nComment on C3 by Bob: really?"
    )


@pytest.mark.parametrize(
    "plain", ["Please view it as HTML.", "Your client does not support HTML mail, sorry", "x", " "]
)
def test_a_mail_whose_text_is_a_stub_is_read_from_its_html(extract: Extract, plain: str) -> None:
    mail = (
        "From: a@b.org\nSubject: s\nMIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=b\n\n"
        "--b\nContent-Type: text/plain\n\n{}\n--b\nContent-Type: text/html\n\n<p>The meeting is at five.</p>\n--b--\n"
    )
    assert extract(mail.format(plain), "a.eml").endswith("The meeting is at five.")
    assert extract(mail.format("The meeting is at 5."), "a.eml").endswith("The meeting is at 5.")


FIELDS = {
    "/Subtype /Widget /FT /Tx /T (f) /V (FILLED)": "f: FILLED",
    "/Subtype /Widget /FT /Tx /T (n) /TU (Your name) /V (Ann \\(A.\\))": "Your name: Ann (A.)",
    "/Subtype /Widget /FT /Ch /Ff 131072 /T (c) /Opt [(red) [(b) (blue)]] /V (b)": "c: blue",
    "/Subtype /Widget /FT /Ch /Ff 2097152 /T (l) /Opt [(x) (y) (z)] /V [(x) (z)]": "l: x, z",
    "/Subtype /Widget /FT /Btn /T (k) /V /Yes /AS /Yes /AP << /N << /Yes null /Off null >> >>": "k: Yes",
    "/Subtype /Text /T (Ann) /Contents (odd)": "Comment by Ann: odd",
    "/Subtype /Highlight /QuadPoints [10 30 90 30 10 10 90 10] /Contents (marked)": "Comment: marked",
    "/Subtype /FreeText /DA (/F1 9 Tf) /Contents (typed)": "typed",
}
NOT_READ = (
    "/Subtype /Widget /FT /Tx /T (e)",
    "/Subtype /Widget /FT /Tx /Ff 8192 /T (p) /V (password)",
    "/Subtype /Widget /FT /Btn /Ff 65536 /T (b)",
    "/Subtype /Widget /FT /Btn /T (o) /V /Off /AS /Off /AP << /N << /Yes null /Off null >> >>",
    "/Subtype /Text /F 2 /Contents (hidden)",
    "/Subtype /Popup /Contents (popup)",
)


@pytest.mark.parametrize("annotation", FIELDS)
def test_form_fields_and_annotations_of_a_pdf_are_read(extract: Extract, annotation: str) -> None:
    assert (
        extract(make_pdf_with_annotations("FORM", [annotation, *NOT_READ]), "a.pdf") == f"FORM\n\n{FIELDS[annotation]}"
    )
    assert FIELDS[annotation] in extract(make_pdf_with_annotations("", [annotation]), "a.pdf")


def test_a_form_that_is_not_filled_names_its_fields_where_it_has_no_other_text(extract: Extract) -> None:
    assert extract(make_pdf_with_annotations("", [NOT_READ[0]]), "a.pdf") == "e:"
    assert extract(make_pdf_with_annotations("FORM", [NOT_READ[0]]), "a.pdf") == "FORM"


PRICE, MODEL, SEES = "\u05de\u05d7\u05d9\u05e8", "\u05de\u05d5\u05d3\u05dc", "\u0627\u0644\u0633\u0639\u0631"
RIGHT_TO_LEFT = {
    # The line as it is seen, from left to right, in the parts that draw it; and as it is read.
    (f"{MODEL[::-1]} USD 250 {PRICE[::-1]}",): f"{PRICE} USD 250 {MODEL}",
    (f"{PRICE[::-1]} H200 141 GB",): f"H200 141 GB {PRICE}",
    (f"Python 3.11 {SEES[::-1]}",): f"{SEES} Python 3.11",
    (f"{SEES[::-1]} 25% {SEES[::-1]} 12/03/2024",): f"12/03/2024 {SEES} 25% {SEES}",
    (f"{MODEL[::-1]} (GPU 5) {PRICE[::-1]}",): f"{PRICE} (GPU 5) {MODEL}",
    (f"{MODEL[::-1]} 2024 2023 {PRICE[::-1]}",): f"{PRICE} 2023 2024 {MODEL}",
    # Drawn apart, each with its own place: a number and then a word.
    (MODEL[::-1] + " ", "GPU", " ", "5", " " + PRICE[::-1]): f"{PRICE} 5 GPU {MODEL}",
}


def test_a_latin_word_beside_a_number_keeps_its_place_in_a_line_from_right_to_left(extract: Extract) -> None:
    assert extract(make_pdf_as_seen(*RIGHT_TO_LEFT), "a.pdf").split("\n") == list(RIGHT_TO_LEFT.values())


def test_a_ligature_is_read_in_the_order_of_its_letters(extract: Extract) -> None:
    data = make_pdf_as_seen(("\u0645\ue000\u0633",)).replace(b"<e000>", b"<06440627>")
    assert extract(data, "a.pdf") == "\u0633\u0644\u0627\u0645"


def test_words_from_right_to_left_keep_their_place_in_a_latin_line(extract: Extract) -> None:
    lines = [(f"The word {PRICE[::-1]} means price 5",), ("Its plural too",)]
    assert extract(make_pdf_as_seen(*lines), "a.pdf") == f"The word {PRICE} means price 5\nIts plural too"
    assert order_line(list(f"a {MODEL[::-1]} {PRICE[::-1]} b"), is_rtl=False) == f"a {PRICE} {MODEL} b"


def test_a_text_of_opendocument_is_read(extract: Extract) -> None:
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        '<text:h text:outline-level="2">Title</text:h><text:p>a<text:s text:c="2"/>b<text:tab/>c\n d<text:line-break/>e'
        "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Note</text:p></text:note-body></text:note>"
        "<office:annotation><dc:creator>Ann</dc:creator><dc:date>2024</dc:date><text:p>why?</text:p></office:annotation>"
        "<draw:frame><title>alt</title><draw:text-box><text:p>box</text:p></draw:text-box></draw:frame></text:p>"
        "<text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>two</text:p></text:list-item>"
        "</text:list></text:list-item></text:list>"
    )
    styles = (
        "<office:master-styles><style:master-page><style:header><text:p>Top</text:p></style:header><style:footer>"
        "<text:p>Bottom</text:p></style:footer></style:master-page></office:master-styles>"
    )
    assert extract(make_odf("text", body, styles=styles), "a.odt") == (
        "Top\n\n## Title\n\nbox\n\na  b\tc d\ne\n\n- one\n  - two\n\nNote\n\nComment by Ann: why?\n\nBottom"
    )


def test_sheets_of_opendocument_are_read(extract: Extract) -> None:
    def cell(more: str, text: str = "") -> str:
        return f"<table:table-cell {more}><text:p>{text}</text:p></table:table-cell>"

    rows = (
        cell("", "Day") + cell("", "Pay") + cell('table:number-columns-repeated="1000"'),
        cell('office:value-type="date" office:date-value="2024-03-01"', "1. M\u00e4rz")
        + cell('office:value-type="float" office:value="1234.50"', "1.234,50"),
    )
    lines = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    lines += f'<table:table-row table:number-rows-repeated="1000000">{cell("")}</table:table-row>'
    found = extract(make_odf("spreadsheet", f'<table:table table:name="S">{lines}</table:table>'), "a.ods")
    assert found == "# S\n\n| Day | Pay |\n| --- | --- |\n| 2024-03-01 | 1234.5 |"


def test_slides_of_opendocument_are_read(extract: Extract) -> None:
    slide = (
        '<draw:page><draw:frame presentation:class="title"><text:p>Title</text:p></draw:frame>'
        "<draw:frame><draw:text-box>"
        '<text:p>text</text:p></draw:text-box></draw:frame><draw:frame><draw:object xlink:href="./O"/></draw:frame>'
        '<presentation:notes><draw:frame presentation:class="page-number"><text:p>7</text:p></draw:frame>'
        '<draw:frame presentation:class="notes"><text:p>say</text:p></draw:frame></presentation:notes></draw:page>'
    )
    row = "<table:table-row><table:table-cell><text:p>x</text:p></table:table-cell></table:table-row>"
    chart = f"<table:table>{row}</table:table>"
    parts = {"O/content": f"<office:body><office:chart>{chart}</office:chart></office:body>"}
    assert extract(make_odf("presentation", slide + slide, **parts), "a.odp") == (
        "# Title\n\ntext\n\nsay\n\nx\n\n# Title\n\ntext\n\nsay\n\nx"
    )


def test_an_opendocument_with_a_password_is_refused(extract: Extract) -> None:
    manifest = "<m><file-entry><encryption-data/></file-entry></m>"
    parts = {
        "mimetype": "application/vnd.oasis.opendocument.text",
        "META-INF/manifest.xml": manifest,
        "content.xml": "\1",
    }
    with pytest.raises(ParsingError) as raised:
        extract(make_zip(parts), "a.odt")
    assert raised.value.code == "document_encrypted"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (r"{\rtf1\ansi hello}", "hello"),
        (r"{\rtf1\ansi\ansicpg1251 \'cf\'f0\'e8\'e2\'e5\'f2\par two}", "\u041f\u0440\u0438\u0432\u0435\u0442\n\ntwo"),
        (
            r"{\rtf1\ansi{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset128 \'82\'6c;}}\f1 \'93\'fa\f0  caf\'e9}",
            "\u65e5 caf\u00e9",
        ),
        (r"{\rtf1 \u8364 ?\u-3913?\uc2\u26085 ab\uc0\u55357\u56832 c\{\}\\}", "\u20ac\uf0b7\u65e5\U0001f600c{}\\"),
        (
            r"{\rtf1{\info{\title x}}{\*\generator y;}{\stylesheet z;}{\pict\bin3 }}}}{\v hidden}"
            r"\outlinelevel0 A\par\pard b}",
            "# A\n\nb",
        ),
        (
            r"{\rtf1{\header Top}{\headerf Top}a{\footnote Note}"
            r"{\*\atnauthor Ann}{\*\annotation odd}{\footer End}\par b}",
            "Top\n\na\n\nb\n\nNote\n\nComment by Ann: odd\n\nEnd",
        ),
        (
            r"{\rtf1{\pntext\'b7\tab}one\par{\listtext 2.}two\par"
            r"{\field{\*\fldinst HYPERLINK x}{\fldrslt link}}{\deleted gone}}",
            "- one\n- two\n\nlink",
        ),
        (
            r"{\rtf1{\shp{\*\shpinst{\sp{\sn a}{\sv b}}{\shptxt box\par}}{\shprslt box}}"
            r"{\upr{c}{\*\ud{\u269 c}}}}} after",
            "\u010d\n\nbox",
        ),
        # Cells whose row, or paragraphs in a table whose cell, has no end.
        (
            r"{\rtf1 \pard Intro\par\pard\intbl Hello cell\par More text\par}",
            "Intro\n\nHello cell More text",
        ),
        (r"{\rtf1 \trowd\cellx1\cellx2\intbl A\cell B\cell}", "| A | B |\n| --- | --- |"),
        (
            r"{\rtf1 \trowd\cellx1\cellx2\pard\intbl A\cell B\par b\cell\row "
            r"C\cell D\par d\cell \pard\par One\par Two\par}",
            "| A | B b |\n| --- | --- |\n| C | D d |\n\nOne\n\nTwo",
        ),
        (
            r"{\rtf1 \trowd\pard\intbl A\cell \pard\intbl\itap2 b\nestcell c\nestcell{\*\nesttableprops\nestrow}"
            r"{\nonesttables\par}\pard\intbl d\cell\row E\cell F\cell\row}",
            "| A | b c d |\n| --- | --- |\n| E | F |",
        ),
    ],
)
def test_rtf_is_read(extract: Extract, document: str, text: str) -> None:
    assert extract(document, "a.rtf") == text


def test_rtf_whose_groups_never_end_is_refused(extract: Extract) -> None:
    with pytest.raises(ParsingError) as raised:
        extract(b"{\\rtf1 " + b"{" * 20_000, "a.rtf")
    assert raised.value.code == "document_malformed"


@pytest.mark.parametrize(
    ("held", "name", "text"),
    [
        (b"# Title\n\ntext", "a.md.gz", "# Title\n\ntext"),
        ("Caf\u00e9".encode(), "log.gz", "Caf\u00e9"),
        (b"<p>a<p>b", "a.html.gz", "a\n\nb"),
        (b"{\\rtf1 a}", "a.rtf.gz", "a"),
    ],
)
def test_a_text_in_a_gzip_archive_is_read(extract: Extract, held: bytes, name: str, text: str) -> None:
    assert extract(gzip.compress(held), name) == text
    assert extract(gzip.compress(held[:3]) + gzip.compress(held[3:]), name) == text


GZIPPED = {
    "PDF": (gzip.compress(make_pdf("a")), "unsupported_media_type"),
    "tar": (gzip.compress(bytes(257) + b"ustar\x0000" + bytes(248)), "unsupported_media_type"),
    "gzip": (gzip.compress(gzip.compress(b"a")), "unsupported_media_type"),
    "binary": (gzip.compress(bytes(range(256)) * 9), "document_not_text"),
    "bomb": (gzip.compress(b"a" * LIMITS.max_text_bytes) + gzip.compress(b"b"), "document_too_large"),
    "cut": (gzip.compress(b"text" * 99)[:-9], "document_malformed"),
    "damaged": (gzip.compress(b"text")[:10] + b"damaged", "document_malformed"),
    "nothing": (gzip.compress(b""), "document_empty"),
}


@pytest.mark.parametrize("kind", GZIPPED)
def test_a_gzip_archive_of_anything_else_is_refused(extract: Extract, kind: str) -> None:
    data, code = GZIPPED[kind]
    with pytest.raises(ParsingError) as raised:
        extract(data, "a.txt.gz")
    assert raised.value.code == code
