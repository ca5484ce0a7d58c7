"""What a file is, and the texts of files of each format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.media_types import detect_file
from retrieval.parsing.worker import ExtractedText, extract_file
from tests.support.document_files import (
    make_docx,
    make_epub,
    make_pdf,
    make_pdf_with_outline,
    make_pptx,
    make_xlsx,
    make_zip,
)


@pytest.fixture(name="extract")
def _extract(tmp_path: Path) -> object:
    def extract(
        data: bytes, name: str | None = None, media_type: str | None = None, limits: ParsingLimits | None = None
    ) -> ExtractedText:
        path = tmp_path / "file"
        path.write_bytes(data)
        return extract_file(path, name, media_type, limits or ParsingLimits())

    return extract


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "a.json", "a.csv", "a.svg"])
def test_text_in_utf_8_is_kept_byte_by_byte(extract, name: str) -> None:  # type: ignore[no-untyped-def]
    data = b"\xef\xbb\xbf# Gr\xc3\xbc\xc3\x9fe\r\n\r\n\ttext \x0c \r end\n\n\n"
    assert extract(data, name).text.encode() == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"P\bPo\bos\bst\btf\bfi\bix\bx _\bH_\bo_\bw\n", "Postfix How\n"),
        (b"N\bN\bNA\bA\bAM\bM\bME\bE\bE\nplain", "NAME\nplain"),
        ("Gru\u0308n\b\u0308ne \u00fc\b\u00fc".encode(), "Gru\u0308\u0308ne \u00fc"),
        (b"\b\nat the margin\n\b", "\b\nat the margin\n\b"),
    ],
)
def test_characters_that_are_printed_over_are_left_out(extract, data: bytes, text: str) -> None:  # type: ignore[no-untyped-def]
    """As in manual pages and READMEs that nroff wrote."""
    assert extract(data, "README.txt").text == text
    assert extract(gzip.compress(data), "README.gz").text == text


def test_text_of_a_docx_is_extracted(extract) -> None:  # type: ignore[no-untyped-def]
    extra = (
        "<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>item</w:t></w:r></w:p>"
        '<w:p><w:pPr><w:tabs><w:tab w:val="left" w:pos="1"/></w:tabs></w:pPr><w:ins><w:r><w:t>new</w:t></w:r></w:ins>'
        "<w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:r><w:instrText>PAGE</w:instrText></w:r>"
        "<w:hyperlink><w:r><w:tab/><w:t>li</w:t><w:noBreakHyphen/><w:t>nk</w:t><w:br/></w:r></w:hyperlink></w:p>"
        "<w:p><w:r><AlternateContent><Choice><w:p><w:r><w:t>box</w:t></w:r></w:p></Choice>"
        "<Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></Fallback></AlternateContent><w:t># outer</w:t></w:r></w:p>"
    )
    found = extract(make_docx("# R&D <1>", "Text.", "a | b", "c & d | e", "## Sub", body=extra))
    assert found.media_type.endswith("wordprocessingml.document")
    assert found.structure == "markdown"
    assert found.text == (
        "# R&D <1>\n\nText.\n\n| a | b |\n| --- | --- |\n| c & d | e |\n\n## Sub\n\n- item\n\n"
        "new\tli-nk\n\nbox\n\n\\# outer"
    )


def test_slides_of_a_pptx_are_extracted_as_pages(extract) -> None:  # type: ignore[no-untyped-def]
    found = extract(make_pptx(["First & <1>", "One", "Two"], ["", "Three"], [""]))
    assert found.text == "# First & <1>\n\nOne\nTwo\n\nThree"
    assert found.page_starts == [0, 24, 31]


def test_sheets_of_an_xlsx_are_extracted_as_tables(extract) -> None:  # type: ignore[no-untyped-def]
    found = extract(make_xlsx({"R&D": [["Name", "Price"], ["apple <1>", 1.50], ["pear", 0.1 + 0.2]], "Empty": []}))
    assert found.text == "# R&D\n\n| Name | Price |\n| --- | --- |\n| apple <1> | 1.5 |\n| pear | 0.3 |\n\n# Empty"
    assert found.page_starts == [0, 74]


def test_values_of_cells_are_extracted_by_their_type(extract) -> None:  # type: ignore[no-untyped-def]
    files = {
        "_rels/.rels": '<r><Relationship Id="a" Type="x/officeDocument" Target="/xl/workbook.xml"/></r>',
        "xl/_rels/workbook.xml.rels": '<r><Relationship Id="s" Type="x/worksheet" Target="sheet.xml"/>'
        '<Relationship Id="t" Type="x/sharedStrings" Target="strings.xml"/>'
        '<Relationship Id="u" Type="x/styles" Target="styles.xml"/></r>',
        "xl/workbook.xml": '<w xmlns:r="r"><sheet name="S" r:id="s"/></w>',
        "xl/strings.xml": "<s><si><t>plain</t></si><si><r><t>ri</t></r><r><t>ch</t></r><rPh><t>no</t></rPh></si></s>",
        "xl/styles.xml": '<s><numFmts><numFmt numFmtId="200" formatCode="yyyy\\-mm&quot;x&quot;"/>'
        '<numFmt numFmtId="201" formatCode="[Red]0.00&quot;days&quot;"/>'
        '<numFmt numFmtId="202" formatCode="[h]:mm"/><numFmt numFmtId="203" formatCode="[s]"/></numFmts>'
        '<cellStyleXfs><xf numFmtId="14"/></cellStyleXfs>'
        '<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="200"/><xf numFmtId="201"/>'
        '<xf numFmtId="202"/><xf numFmtId="203"/><xf numFmtId="46"/></cellXfs></s>',
        "xl/sheet.xml": '<w><row><c t="s"><v>0</v></c><c t="s"><v>1</v></c><c t="s"><v>9</v></c><c t="b"><v>1</v></c>'
        '<c t="str"><f>A1</f><v>value</v></c><c t="e"><v>#N/A</v></c></row>'
        '<row><c s="1"><v>45292</v></c><c s="2"><v>45292.75</v></c><c s="1"><v>0.5</v></c><c s="3"><v>45292</v></c>'
        '<c r="G2"><v>x</v></c><c s="1"><v>1e300</v></c><c r="ZZZ2"><v>7</v></c></row>'
        f'<row><c s="4"><v>{40 / 24}</v></c><c s="5"><v>{-90.5 / 1440}</v></c><c s="6"><v>1</v></c>'
        '<c s="1"><v>-1.5</v></c></row></w>',
    }
    lines = extract(make_zip(files)).text.split("\n")
    assert lines[2].startswith("| plain | rich | TRUE | value | #N/A |  |  |")
    assert lines[4].startswith("| 2024-01-01 | 2024-01-01 18:00:00 | 12:00:00 | 45292 |  |  | x | 1e300 | ")
    assert lines[4].endswith(" |  | 7 |")
    assert lines[5].startswith("| 40:00:00 | -1:30:30 | 24:00:00 | -1.5 |")


def test_chapters_of_an_epub_are_extracted(extract) -> None:  # type: ignore[no-untyped-def]
    found = extract(make_epub({"One": "R&amp;D &lt;1&gt;", "Two": "End."}))
    assert (found.media_type, found.text) == ("application/epub+zip", "# One\n\nR&D <1>\n\n# Two\n\nEnd.")


def test_an_epub_that_is_protected_is_refused_and_one_with_hidden_fonts_is_not(extract) -> None:  # type: ignore[no-untyped-def]
    parts = {
        "META-INF/container.xml": '<c><rootfile full-path="book.opf"/></c>',
        "book.opf": '<p><item id="a" href="a%20b.html" media-type="text/html"/><itemref idref="a"/></p>',
        "a b.html": "<p>text",
    }
    fonts = '<e><EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/></e>'
    assert extract(make_zip({**parts, "META-INF/encryption.xml": fonts})).text == "text"
    protected = '<e><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></e>'
    with pytest.raises(ParsingError) as raised:
        extract(make_zip({**parts, "META-INF/encryption.xml": protected}))
    assert raised.value.code == "document_encrypted"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<title>T</title><p>a <b>b</b>\n c&amp;d<br>e</p>f", "a b c&d\ne\n\nf\n\nTitle: T"),
        ("<title>T</title><h2> a\n b </h2><p># c", "## a b\n\n\\# c"),
        ("<ul><li>a<li><p>b</p><ol><li>c</li><li>d</ol></ul>e", "- a\n- b\n  1. c\n  2. d\n\ne"),
        (
            "<table><tr><th>a<th>b<tr><td>1<p>2</p><td></table><table><td>c</table>",
            "| a | b |\n| --- | --- |\n| 1 2 |  |\n\nc",
        ),
        (
            "<table><tr><th>A<th>B</tr><tr><td>1<table><tr><th>n<td>m</tr></table>2</td><td>3</td></tr>"
            "<tr><td>4</td><td>5</td></tr></table>c",
            "| A | B |\n| --- | --- |\n| 1 n m 2 | 3 |\n| 4 | 5 |\n\nc",
        ),
        # A table without a `th` is layout perhaps: tables in it stay tables.
        (
            "<table><tr><td>a<td><table><tr><td>b<td>c</table></table>",
            "| a |  |\n| --- | --- |\n\n| b | c |\n| --- | --- |",
        ),
        ("<table><tr><td><h1>Title</h1><p>Body</p></td></tr></table><p>Next</p>", "Title Body\n\nNext"),
        ("<li><table><tr><td><ol><li>a<li>b</ol></td></tr></table>c<p>d", "a b\n\n- c\n\nd"),
        ("<pre> a\n\n  b\n</pre><p>c", "```\n a\n\n  b\n```\n\nc"),
        ("<pre>```</pre>", "````\n```\n````"),
        ("<script>x</script><style>x</style><nav>x<p>x</nav>a<svg><text>x</text></svg>b", "ab"),
        ("<nav>menu<main>text", "text"),
        ("a<img alt='picture'>b<img>c", "apicturebc"),
        ("<![CDATA[a]]><![foo[b<![if x]>c<!-- d --><?e?>&unknown;&#0;f", "a<![foo[bc&unknown;\ufffdf"),
        ("</ul></li></table></nav></pre>a", "a"),
        ("<p/>a<br/>b<svg/>c", "a\nbc"),
        ("a<!-- b --> c <!-- d > e", "a c"),
        ("<p>1 < 2", "1 < 2"),
        ("<p>1 <b", "1 <b"),
    ],
)
def test_text_of_html_is_extracted(extract, markup: str, text: str) -> None:  # type: ignore[no-untyped-def]
    assert extract(markup.encode(), "a.html").text == text


def test_html_in_the_encoding_that_it_names(extract) -> None:  # type: ignore[no-untyped-def]
    page = '<html><meta http-equiv=x content="text/html; charset=koi8-r"><p>Привет'.encode("koi8-r")
    assert extract(page).text == "Привет"
    assert extract("<p>Привет".encode("koi8-r"), "a.html", "text/html; charset=koi8-r").text == "Привет"


def test_the_transport_s_encoding_wins_over_the_page_s(extract) -> None:  # type: ignore[no-untyped-def]
    page = '<meta charset="koi8-r"><p>Привет'.encode("cp1251")
    assert extract(page, "a.html", "text/html; charset=windows-1251").text == "Привет"
    # What is read as ASCII here cannot be in UTF-16, as browsers know.
    assert extract('<meta charset="utf-16"><p>Привет'.encode(), "a.html").text == "Привет"


def test_xml_in_the_encoding_that_it_names(extract) -> None:  # type: ignore[no-untyped-def]
    text = '<?xml version="1.0" encoding="windows-1251"?><a>Привет</a>'
    assert extract(text.encode("cp1251"), "a.xml").text == text
    # A text that speaks of XML is none.
    assert extract(text.encode(), "a.txt").text == text


def test_mails_in_the_encodings_that_they_name(extract) -> None:  # type: ignore[no-untyped-def]
    head = b'Subject: s\nMIME-Version: 1.0\nContent-Type: text/plain; charset="iso-2022-jp"\n\n'
    assert "会議" in extract(head + "会議".encode("iso2022_jp"), "jp.eml").text
    page = b"Subject: s\nMIME-Version: 1.0\nContent-Type: text/html\nContent-Transfer-Encoding: 8bit\n\n"
    assert "会議" in extract(page + '<meta charset="euc-jp"><p>会議'.encode("euc_jp"), "jp.eml").text


def test_a_mail_whose_body_nobody_can_read_is_refused(extract) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParsingError) as raised:
        extract(b"Subject: s\nContent-Transfer-Encoding: 8bit\n\n" + "Dziękuję".encode("cp1250"), "a.eml")
    assert raised.value.code == "document_not_text"


def test_pages_of_a_pdf_are_extracted(extract) -> None:  # type: ignore[no-untyped-def]
    found = extract(make_pdf("One", "", "Three"))
    assert (found.text, found.page_starts, found.structure) == ("One\n\nThree", [0, 5, 5], "prose")


def test_the_outline_of_a_pdf_names_its_headings(extract) -> None:  # type: ignore[no-untyped-def]
    pages = [["Setup is described here", "1 Setup", "text", "1.1 On  Linux", "text"], ["text", "USE", "text"]]
    outline = [("Setup", 0, ["On Linux"]), ("Missing", 0, []), ("Use", 1, [])]
    found = extract(make_pdf_with_outline(pages, outline))
    headings = [(heading.level, heading.title) for heading in found.headings]
    assert headings == [(1, "1 Setup"), (2, "1.1 On Linux"), (1, "USE")]
    assert [found.text[heading.start :].split("\n")[0].strip() for heading in found.headings][2] == "USE"


def test_a_pdf_keeps_text_beyond_the_edge_of_a_page(extract) -> None:  # type: ignore[no-untyped-def]
    assert extract(make_pdf("word " * 100)).text.count("word") == 100


MAIL = (
    b"From: A <a@b.org>\r\nTo: c@d.org\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: multipart/alternative; boundary=c\r\n\r\n"
    b"--c\r\nContent-Type: text/plain; charset=latin-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    b"Gr=FC=DFe\r\n"
    b"--c\r\nContent-Type: text/html\r\n\r\n<p>html</p>\r\n--c--\r\n"
    b"--b\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename=n.txt\r\n\r\nattached\r\n"
    b"--b\r\nContent-Type: image/png\r\nContent-Disposition: attachment; filename=p.png\r\n\r\nx\r\n"
    b"--b\r\nContent-Type: message/rfc822\r\n\r\n"
    b"Subject: inner\r\nContent-Type: text/html\r\n\r\n<h1>in</h1>\r\n--b--\r\n"
)


def test_a_mail_is_extracted_with_its_attachments(extract) -> None:  # type: ignore[no-untyped-def]
    assert extract(MAIL, "a.eml").text == (
        "# Grüße\n\nFrom: A <a@b.org>\nTo: c@d.org\n\nGrüße\n\nAttachment: n.txt\n\nattached\n\nAttachment: p.png\n\n"
        "## inner\n\n# in"
    )


@pytest.mark.parametrize("header", [b'To: "x <@,,;:', b"Date: nonsense", b"From: =?utf-8?b?!!!?=", b"Cc: \xff\xfe"])
def test_mail_with_bad_headers(extract, header: bytes) -> None:  # type: ignore[no-untyped-def]
    assert "body" in extract(b"Subject: s\n" + header + b"\n\nbody", "a.eml").text


def test_a_mail_without_headers_is_malformed(extract) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParsingError) as raised:
        extract(b"no headers here\n", "a.eml")
    assert raised.value.code == "document_malformed"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"text " * 100, "a.txt"),
        (b"<p>" + b"text " * 100, "a.html"),
        (make_docx("text " * 100), "a.docx"),
        (make_pdf("text " * 100), "a.pdf"),
        (make_pdf("a", "b", "c"), "a.pdf"),
        (make_pptx(["a"], ["b"], ["c"]), "a.pptx"),
        (make_xlsx({"a": [], "b": [], "c": []}), "a.xlsx"),
    ],
)
def test_limits_of_text_and_pages(extract, data: bytes, name: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParsingError) as raised:
        extract(data, name, limits=ParsingLimits(max_text_bytes=400, max_pages=2))
    assert raised.value.code == "document_too_large"


PLAIN_MAIL = b"Received: from x\r\n by y\r\nFrom: a@b.org\r\nX-Other: 1\r\n\r\nbody"


@pytest.mark.parametrize(
    ("data", "filename", "media_type", "expected"),
    [
        (b"text", None, None, ("text", "text/plain", "prose")),
        (b"text", "a.txt", None, ("text", "text/plain", "prose")),
        (b"text", "README.MD", None, ("text", "text/markdown", "markdown")),
        (b"text", "folder/a.py", None, ("text", "text/x-python", "lines")),
        (b"text", "Makefile", None, ("text", "text/x-makefile", "lines")),
        (b"text", "a.unknown", None, ("text", "text/plain", "prose")),
        (b"text", "a.json", "text/plain", ("text", "application/json", "lines")),
        (b"a,b", "a.csv", None, ("text", "text/csv", "records")),
        (b"<svg/>", "a.svg", None, ("text", "image/svg+xml", "lines")),
        (b"text", None, "text/markdown; charset=utf-8", ("text", "text/markdown", "markdown")),
        (b"text", "a", "Text/X-Python", ("text", "text/x-python", "lines")),
        (b"text", None, "application/octet-stream", ("text", "text/plain", "prose")),
        (b"#!/bin/sh\n", "run", None, ("text", "text/x-script", "lines")),
        (b"text", "a.html", None, ("html", "text/html", "prose")),
        (b" <!-- c --> <!DOCTYPE HTML><p>", None, None, ("html", "text/html", "prose")),
        (b"<?xml version='1.0'?>\n<html xmlns=''>", "a.txt", None, ("html", "text/html", "prose")),
        (b"<html>", "a.py", None, ("text", "text/x-python", "lines")),
        (b"text <html>", None, None, ("text", "text/plain", "prose")),
        (b"text", "a.eml", None, ("mail", "message/rfc822", "prose")),
        (PLAIN_MAIL, None, None, ("mail", "message/rfc822", "prose")),
        (PLAIN_MAIL, "a.txt", None, ("text", "text/plain", "prose")),
        (b"Note: a\nFrom: b\n\n", None, None, ("text", "text/plain", "prose")),
        (make_pdf("text"), "a.txt", "text/plain", ("pdf", "application/pdf", "prose")),
        (b"\n\n" + make_pdf("text"), None, None, ("pdf", "application/pdf", "prose")),
        (b"# %PDF-1.7 is what a PDF begins with", "a.py", None, ("text", "text/x-python", "lines")),
        (b"junk" + make_pdf("text"), "a.bin", None, ("pdf", "application/pdf", "prose")),
        (b"ID3,Name\n1,a", "a.csv", None, ("text", "text/csv", "records")),
        (b"{\\rtf1 a}", "a.doc", "application/msword", ("rtf", "application/rtf", "prose")),
        (b"\x1f\x8b\x08", "a.txt", "text/plain", ("gzip", "application/gzip", "prose")),
        (b"GIF8 is a mark, as RIFF and BZh are", None, None, ("text", "text/plain", "prose")),
        (make_docx("text"), "a.pdf", "application/pdf", ("zip", "application/zip", "prose")),
    ],
)
def test_content_counts_before_the_name_and_the_name_before_the_declared_type(
    data: bytes, filename: str | None, media_type: str | None, expected: tuple[str, str, str]
) -> None:
    found = detect_file(data, filename, media_type)
    assert (found.format, found.media_type, found.structure) == expected


KNOWN = (b"\x89PNG\r\n", b"\x7fELF", bytes(257) + b"ustar", b"GIF89a\x01\x00", b"RIFF\x24\x08\x00\x00WAVEfmt ")
MORE_KNOWN = (b"ID3\x04\x00", b"BZh91AY&SY")
OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        *((data, "unsupported_media_type") for data in (*KNOWN, *MORE_KNOWN, OLD_OFFICE)),
        (OLD_OFFICE + "EncryptedPackage".encode("utf-16-le"), "document_encrypted"),
    ],
)
def test_known_binaries_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(ParsingError) as raised:
        detect_file(data, "a.txt", "text/plain")
    assert raised.value.code == code


def test_many_comments_before_a_page_take_no_time() -> None:
    assert detect_file(b"<!--a-->" * 10_000 + b"text", None, None).format == "text"
