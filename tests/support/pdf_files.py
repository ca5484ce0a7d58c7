"""PDFs, written by hand: text on pages, and what is wrong with some."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Sequence
from io import BytesIO


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
