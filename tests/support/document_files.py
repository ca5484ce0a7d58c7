"""Documents, written by hand: PDF, DOCX, PPTX, XLSX, ODT, EPUB, e-mail, and what may be wrong with them. And a reader
of files that never ends."""

from __future__ import annotations

import base64
import itertools
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from xml.sax.saxutils import escape

import psutil


def make_pdf(*pages: str) -> bytes:
    """One with these lines of text, one on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        resources = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] {resources} >>".encode())
        drawn = f"BT /F1 24 Tf 50 700 Td ({text}) Tj ET" if text else ""
        objects.append(_stream(drawn.encode()))
    return _file(objects)


def make_pdf_with_outline(pages: Sequence[Sequence[str]], outline: Sequence[tuple[str, int, Sequence[str]]]) -> bytes:
    """One with these pages of lines, and bookmarks: title, page from 0, titles of bookmarks below it on that page."""
    objects = [b"", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    page_numbers = []
    for lines in pages:
        drawn = "".join(f"({line}) Tj 0 -30 Td " for line in lines)
        objects.append(_stream(f"BT /F1 24 Tf 50 700 Td {drawn} ET".encode()))
        resources = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {len(objects)} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] {resources} >>".encode())
        page_numbers.append(len(objects))
    root = _add_bookmarks(objects, [(title, page_numbers[page], below) for title, page, below in outline])
    kids = " ".join(f"{number} 0 R" for number in page_numbers)
    objects[0] = f"<< /Type /Catalog /Pages 2 0 R /Outlines {root} 0 R >>".encode()
    objects[1] = f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode()
    return _file(objects)


def _add_bookmarks(objects: list[bytes], bookmarks: Sequence[tuple[str, int, Sequence[str]]]) -> int:
    """Add one level of bookmarks, and return the number of what holds it."""
    objects.append(b"")
    holder = len(objects)
    numbers = []
    for title, page, below in bookmarks:
        inner = _add_bookmarks(objects, [(each, page, ()) for each in below]) if below else 0
        children = f"/First {inner + 1} 0 R /Last {inner + 1} 0 R /Count 1" if inner else ""
        objects.append(f"<< /Title ({title}) /Parent {holder} 0 R /Dest [{page} 0 R /Fit] {children} >>".encode())
        numbers.append(len(objects))
    for number, following in itertools.pairwise(numbers):
        objects[number - 1] = objects[number - 1].replace(b" >>", f" /Next {following} 0 R >>".encode())
    objects[holder - 1] = f"<< /Type /Outlines /First {numbers[0]} 0 R /Last {numbers[-1]} 0 R >>".encode()
    return holder


def make_pdf_with_annotations(text: str, annotations: Sequence[str]) -> bytes:
    """One with this text and annotations, each the inside of a dictionary of PDF. Widgets are fields of a form."""
    first = 6
    numbers = [f"{first + number} 0 R" for number in range(len(annotations))]
    fields = [number for number, each in zip(numbers, annotations, strict=True) if "/Widget" in each]
    form = f"<< /Fields [{' '.join(fields)}] /DA (/F1 0 Tf 0 g) /DR << /Font << /F1 3 0 R >> >> >>"
    drawn = f"BT /F1 24 Tf 50 700 Td ({text}) Tj ET" if text else ""
    return _file(
        [
            f"<< /Type /Catalog /Pages 2 0 R {f'/AcroForm {form}' if fields else ''} >>".encode(),
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents 5 0 R /Annots [{' '.join(numbers)}] >>".encode(),
            _stream(drawn.encode()),
            *(f"<< /Type /Annot /Rect [10 10 90 30] /P 4 0 R {each} >>".encode() for each in annotations),
        ]
    )


def make_pdf_as_seen(*lines: Sequence[str]) -> bytes:
    """One with these lines, as one sees them from left to right: each has parts, drawn one after the other."""
    characters = sorted({each for line in lines for part in line for each in part})
    codes = {each: f"{number:02x}" for number, each in enumerate(characters, 33)}
    pairs = "".join(f"<{code}> <{ord(each):04x}> " for each, code in codes.items())
    unicode = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00> <ff> "
        f"endcodespacerange {len(codes)} beginbfchar {pairs} endbfchar endcmap end end"
    )
    drawn = ""
    for number, line in enumerate(lines):
        left = 50
        for part in line:
            drawn += f"BT /F1 10 Tf {left} {700 - 30 * number} Td <{''.join(codes[each] for each in part)}> Tj ET\n"
            left += 6 * len(part)
    widths = " ".join(["600"] * len(codes))
    return _file(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            f"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /FirstChar 33 /LastChar {32 + len(codes)} "
            f"/Widths [{widths}] /ToUnicode 6 0 R >>".encode(),
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents 5 0 R >>",
            _stream(drawn.encode()),
            _stream(unicode.encode()),
        ]
    )


def make_bomb() -> bytes:
    """One whose page is far larger than itself: 2 GiB of spaces."""
    block = zlib.compress(b" " * (64 * 1024 * 1024), 9)
    nested = zlib.compress(block * 32, 9)
    content = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%b\nendstream" % (len(nested), nested)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R >>",
        content,
    ]
    return _file(objects)


def make_encrypted_pdf(password: str) -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf("secret"))))
    writer.encrypt(password, algorithm="RC4-128")
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def as_data_url(data: bytes) -> str:
    return "data:application/pdf;base64," + base64.b64encode(data).decode()


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content)


def _file(objects: list[bytes]) -> bytes:
    out, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    tail = b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return out + tail % (size, table, size, len(out))


_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
_SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_TYPE = "application/vnd.openxmlformats-officedocument"
_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'


def make_zip(files: Mapping[str, bytes | str]) -> bytes:
    """One with these files, `mimetype` not compressed."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED)
    return out.getvalue()


def make_docx(*paragraphs: str, prolog: str = "", body: str = "") -> bytes:
    """One with these paragraphs; `# Text` and `## Text` are headings, `a | b` is a row of a table. `prolog`: what
    stands before the root element of the document, such as a DTD. `body`: further XML."""
    parts: list[str] = []
    rows: list[str] = []
    for text in (*paragraphs, ""):
        if "|" in text:
            cells = "".join(f"<w:tc>{_paragraph(cell.strip())}</w:tc>" for cell in text.split("|"))
            rows.append(f"<w:tr>{cells}</w:tr>")
            continue
        if rows:
            parts.append(f"<w:tbl>{''.join(rows)}</w:tbl>")
            rows = []
        if text:
            level = len(text) - len(text.lstrip("#"))
            parts.append(_paragraph(text.lstrip("# "), f"Heading{level}" if level else ""))
    document = f'<w:document xmlns:w="{_WORD}"><w:body>{"".join(parts)}{body}</w:body></w:document>'
    return make_docx_of(_XML + prolog + document)


def make_docx_of(document: bytes | str) -> bytes:
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="Heading{level}"><w:name w:val="heading {level}"/>'
        f'<w:pPr><w:outlineLvl w:val="{level - 1}"/></w:pPr></w:style>'
        for level in range(1, 7)
    )
    return make_zip(
        {
            "[Content_Types].xml": _content_types(
                {
                    "/word/document.xml": f"{_TYPE}.wordprocessingml.document.main+xml",
                    "/word/styles.xml": f"{_TYPE}.wordprocessingml.styles+xml",
                }
            ),
            "_rels/.rels": _relations({"rId1": ("officeDocument", "word/document.xml")}),
            "word/_rels/document.xml.rels": _relations({"rId1": ("styles", "styles.xml")}),
            "word/styles.xml": f'{_XML}<w:styles xmlns:w="{_WORD}">{styles}</w:styles>',
            "word/document.xml": document,
        }
    )


def make_office(main: str, parts: Mapping[str, str], relations: Mapping[str, Sequence[tuple[str, str]]]) -> bytes:
    """A package of Office with these parts; `main` is the document. `relations`: of each part that refers to others, in
    order of their ids (`rId1`, ...), kind and name."""
    files: dict[str, bytes | str] = {name: f"{_XML}{content}" for name, content in parts.items()}
    for name, targets in {"": [("officeDocument", main)], **relations}.items():
        folder, _, base = name.rpartition("/")
        numbered = {f"rId{number}": (kind, f"/{part}") for number, (kind, part) in enumerate(targets, 1)}
        files[f"{folder}/_rels/{base}.rels".lstrip("/")] = _relations(numbered)
    return make_zip(files)


def make_odf(kind: str, body: str, **parts: str) -> bytes:
    """An OpenDocument of this kind (`text`, `spreadsheet`, `presentation`) with this body, and other parts."""
    names = ("office", "text", "table", "draw", "presentation", "style")
    spaces = " ".join(f'xmlns:{each}="urn:oasis:names:tc:opendocument:xmlns:{each}:1.0"' for each in names)
    spaces += ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'
    content = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    inner = {"content": content, **parts}
    files: dict[str, bytes | str] = {"mimetype": f"application/vnd.oasis.opendocument.{kind}"}
    for name, each in inner.items():
        files[f"{name}.xml"] = f"{_XML}<office:document-content {spaces}>{each}</office:document-content>"
    return make_zip(files)


def make_pptx(*slides: Sequence[str]) -> bytes:
    """One with these slides: the title, then lines of text."""
    numbers = range(1, len(slides) + 1)
    ids = "".join(f'<p:sldId id="{255 + number}" r:id="rId{number}"/>' for number in numbers)
    files: dict[str, bytes | str] = {
        "[Content_Types].xml": _content_types(
            {
                "/ppt/presentation.xml": f"{_TYPE}.presentationml.presentation.main+xml",
                **{f"/ppt/slides/slide{number}.xml": f"{_TYPE}.presentationml.slide+xml" for number in numbers},
            }
        ),
        "_rels/.rels": _relations({"rId1": ("officeDocument", "ppt/presentation.xml")}),
        "ppt/_rels/presentation.xml.rels": _relations(
            {f"rId{number}": ("slide", f"slides/slide{number}.xml") for number in numbers}
        ),
        "ppt/presentation.xml": f'{_XML}<p:presentation xmlns:p="{_SLIDES}" xmlns:r="{_OFFICE}/relationships">'
        f"<p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
    }
    for number, (title, *lines) in zip(numbers, slides, strict=True):
        shapes = _shape(1, '<p:ph type="title"/>', [title]) + _shape(2, '<p:ph idx="1"/>', lines)
        files[f"ppt/slides/slide{number}.xml"] = (
            f'{_XML}<p:sld xmlns:p="{_SLIDES}" xmlns:a="{_DRAWING}"><p:cSld><p:spTree><p:nvGrpSpPr><p:cNvPr id="0" '
            f'name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>{shapes}</p:spTree></p:cSld></p:sld>'
        )
    return make_zip(files)


def make_xlsx(sheets: Mapping[str, Sequence[Sequence[str | float]]]) -> bytes:
    numbers = range(1, len(sheets) + 1)
    names = "".join(
        f'<sheet name="{escape(name)}" sheetId="{number}" r:id="rId{number}"/>'
        for number, name in zip(numbers, sheets, strict=True)
    )
    files: dict[str, bytes | str] = {
        "[Content_Types].xml": _content_types(
            {
                "/xl/workbook.xml": f"{_TYPE}.spreadsheetml.sheet.main+xml",
                **{f"/xl/worksheets/sheet{number}.xml": f"{_TYPE}.spreadsheetml.worksheet+xml" for number in numbers},
            }
        ),
        "_rels/.rels": _relations({"rId1": ("officeDocument", "xl/workbook.xml")}),
        "xl/_rels/workbook.xml.rels": _relations(
            {f"rId{number}": ("worksheet", f"worksheets/sheet{number}.xml") for number in numbers}
        ),
        "xl/workbook.xml": f'{_XML}<workbook xmlns="{_SHEETS}" xmlns:r="{_OFFICE}/relationships"><sheets>{names}'
        "</sheets></workbook>",
    }
    for number, rows in zip(numbers, sheets.values(), strict=True):
        lines = "".join(f'<row r="{row}">{_cells(row, cells)}</row>' for row, cells in enumerate(rows, 1))
        files[f"xl/worksheets/sheet{number}.xml"] = (
            f'{_XML}<worksheet xmlns="{_SHEETS}"><sheetData>{lines}</sheetData></worksheet>'
        )
    return make_zip(files)


def make_epub(chapters: Mapping[str, str]) -> bytes:
    numbers = range(1, len(chapters) + 1)
    items = "".join(f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in numbers)
    spine = "".join(f'<itemref idref="c{n}"/>' for n in numbers)
    files: dict[str, bytes | str] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f'{_XML}<container version="1.0" '
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile full-path="OEBPS/book.opf" '
        'media-type="application/oebps-package+xml"/></rootfiles></container>',
        "OEBPS/book.opf": f'{_XML}<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">book</dc:identifier>'
        "<dc:title>Book</dc:title><dc:language>en</dc:language></metadata>"
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    for number, (title, text) in zip(numbers, chapters.items(), strict=True):
        files[f"OEBPS/c{number}.xhtml"] = (
            f'{_XML}<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{title}</title></head>'
            f"<body><h1>{title}</h1><p>{text}</p></body></html>"
        )
    return make_zip(files)


def make_bomb_docx(size: int) -> bytes:
    """A small one whose document is `size` bytes of text."""
    head = f'{_XML}<w:document xmlns:w="{_WORD}"><w:body><w:p><w:r><w:t>'
    return make_docx_of(head.encode() + b"word " * (size // 5) + b"</w:t></w:r></w:p></w:body></w:document>")


def _paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f'<w:p>{properties}<w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def _shape(number: int, placeholder: str, lines: Sequence[str]) -> str:
    paragraphs = "".join(f"<a:p><a:r><a:t>{escape(line)}</a:t></a:r></a:p>" for line in lines)
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="{number}" name="s{number}"/><p:cNvSpPr/><p:nvPr>{placeholder}</p:nvPr>'
        f"</p:nvSpPr><p:spPr/><p:txBody><a:bodyPr/>{paragraphs}</p:txBody></p:sp>"
    )


def _cells(row: int, cells: Sequence[str | float]) -> str:
    out = []
    for column, cell in enumerate(cells):
        place = f"{chr(65 + column)}{row}"
        if isinstance(cell, str):
            out.append(f'<c r="{place}" t="inlineStr"><is><t>{escape(cell)}</t></is></c>')
        else:
            out.append(f'<c r="{place}"><v>{cell}</v></c>')
    return "".join(out)


def _content_types(overrides: Mapping[str, str]) -> str:
    parts = "".join(f'<Override PartName="{name}" ContentType="{kind}"/>' for name, kind in overrides.items())
    return (
        f'{_XML}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{parts}</Types>'
    )


def _relations(targets: Mapping[str, tuple[str, str]]) -> str:
    parts = "".join(
        f'<Relationship Id="{name}" Type="{_OFFICE}/relationships/{kind}" Target="{target}"/>'
        for name, (kind, target) in targets.items()
    )
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{parts}</Relationships>'


WAITS = (sys.executable, "-c", "import sys, threading; sys.stdin.read(); threading.Event().wait()")


def count_running() -> int:
    """How many of them this process has started and not ended."""
    return sum(_is_one(each) for each in psutil.Process().children())


def _is_one(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:] == list(WAITS[1:])
    except psutil.Error:  # it ends just now
        return False
