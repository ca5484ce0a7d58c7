"""Forms with one file, in parts of any size; names of files in headers: nothing unseen, no other header."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.api.requests import (
    LONGEST_FIELD,
    MOST_NAME_BYTES,
    FormError,
    FormParser,
    UploadedFile,
    build_disposition,
    clean_file_name,
)

TYPE = 'multipart/form-data; boundary="edge"'


def make_form(*parts: tuple[str, bytes], end: bytes = b"--edge--\r\n") -> bytes:
    """A form of parts: the headers of each, a line each, and its content."""
    return b"".join(b"--edge\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n" for head, content in parts) + end


def field(name: str, content: bytes) -> tuple[str, bytes]:
    """A part that is no file."""
    return f'Content-Disposition: form-data; name="{name}"', content


def upload(content: bytes, filename: str = "a.md", media_type: str = "text/markdown") -> tuple[str, bytes]:
    """A part that is the file."""
    head = f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: {media_type}'
    return head, content


def parse(form: bytes, step: int = 2**20) -> tuple[dict[str, str], UploadedFile, bytes]:
    """The fields, the file and its content."""
    parser = FormParser(TYPE, ("id", "metadata"))
    content = b"".join(b"".join(parser.feed(form[at : at + step])) for at in range(0, len(form), step))
    return *parser.finish(), content


@given(st.binary(max_size=200), st.text(max_size=20), st.integers(1, 50))
def test_a_form_is_the_same_in_parts_of_any_size(content: bytes, value: str, step: int) -> None:
    if b"--edge" in content or "--edge" in value:
        return
    form = make_form(field("id", value.encode()), upload(content), field("metadata", b"{}"))
    assert parse(form, step) == ({"id": value, "metadata": "{}"}, UploadedFile("a.md", "text/markdown"), content)


@pytest.mark.parametrize(
    ("declared", "media_type"),
    [
        ("application/octet-stream", None),
        ("Text/HTML; charset=UTF-8; level=1", "text/html; charset=UTF-8"),
        ('text/plain;charset="windows-1251"', "text/plain; charset=windows-1251"),
        ("text/plain; format=flowed", "text/plain"),
        ("", None),
    ],
)
def test_a_type_of_no_use_is_none(declared: str, media_type: str | None) -> None:
    assert parse(make_form(upload(b"x", "Maße.txt", declared)))[1] == UploadedFile("Maße.txt", media_type)


@pytest.mark.parametrize(
    ("form", "at_fault"),
    [
        *((form, "file") for form in (make_form(), make_form(field("id", b"x")), make_form(field("file", b"x")))),
        (make_form(upload(b"x"), upload(b"y")), "file"),
        (make_form(field("colour", b"x"), upload(b"y")), "colour"),
        (make_form(field("id", b"x"), field("id", b"y"), upload(b"z")), "id"),
        (make_form(field("id", b"x" * (LONGEST_FIELD + 1)), upload(b"z")), "id"),
        (make_form(("Content-Disposition: form-data", b"x")), None),
        (make_form(upload(b"x"), end=b""), None),
        (b"no form", None),
        (b"", None),
        (b"--edge\r\n" + b"X" * 100_000, None),
    ],
)
def test_what_is_wrong_is_named(form: bytes, at_fault: str | None) -> None:
    with pytest.raises(FormError) as raised:
        parse(form)
    assert raised.value.field == at_fault


@pytest.mark.parametrize("declared", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 1000])
def test_a_boundary_that_cannot_be_is_refused(declared: str) -> None:
    with pytest.raises(FormError, match="malformed"):
        FormParser(declared, ())


PACKAGES = ("retrieval", "gateway", "controller", "transfers", "common")


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("fox.txt", "fox.txt"),
        ("Maße 1.pdf", "Maße 1.pdf"),
        ("敏捷　狐.md", "敏捷　狐.md"),
        ("../../etc/passwd", "passwd"),
        ("/abs/x.txt", "x.txt"),
        ("C:\\Users\\me\\x.txt", "x.txt"),
        ("a/b\\c", "c"),
        ("x\0.txt", "x.txt"),
        ("x.txt\r\nset-cookie: a=b", "x.txtset-cookie: a=b"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("\u2066a\u2067b\u2068c\u2069\u200e\u200f\u202a\u202b\u202c\u202d.md", "abc.md"),
        ("a\ud800b", "ab"),
        ("a\u2028b\ufeffc", "abc"),
        ("👩\u200d💻.txt", "👩\u200d💻.txt"),
        (" x.txt . ", "x.txt"),
        (".env", ".env"),
        *((given_name, None) for given_name in ("..", "a/", "", "\u202e\0", "\u200d.")),
        ("x" * 5000 + ".gguf", "x" * (MOST_NAME_BYTES - 5) + ".gguf"),
        ("ß" * 5000, "ß" * (MOST_NAME_BYTES // 2)),
        ("x." + "y" * 5000, "x." + "y" * (MOST_NAME_BYTES - 2)),
    ],
)
def test_a_name_is_what_is_seen_of_its_last_part(given_name: str, kept: str | None) -> None:
    assert clean_file_name(given_name) == kept


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("fox.txt", 'attachment; filename="fox.txt"'),
        ("a b;c,d.txt", 'attachment; filename="a b;c,d.txt"'),
        ('a"b.txt', "attachment; filename=\"a_b.txt\"; filename*=UTF-8''a%22b.txt"),
        ("100%.txt", "attachment; filename=\"100_.txt\"; filename*=UTF-8''100%25.txt"),
        ("Maße.txt", "attachment; filename=\"Ma_e.txt\"; filename*=UTF-8''Ma%C3%9Fe.txt"),
        ("../a/x.txt", 'attachment; filename="x.txt"'),
        ("a\u202e\0/", 'attachment; filename="file"'),
        ("x\r\ny: z.txt", "attachment; filename=\"xy_ z.txt\"; filename*=UTF-8''xy%3A%20z.txt"),
    ],
)
def test_a_download_is_called_so(name: str, header: str) -> None:
    assert build_disposition(name, "file") == header


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_name_makes_a_header(name: str) -> None:
    header = build_disposition(name, "file")
    assert header.isascii()
    assert re.fullmatch(
        r"attachment; filename=\"[^\"\\/\x00-\x1f\x7f]+\"(; filename\*=UTF-8''[A-Za-z0-9%._~-]+)?", header
    )
    cleaned = clean_file_name(name)
    assert cleaned is None or clean_file_name(cleaned) == cleaned
    assert not {unicodedata.bidirectional(each) for each in cleaned or ""} & {"RLO", "LRO", "RLE", "LRE", "RLI", "LRI"}


def test_no_download_is_called_in_another_way() -> None:
    root = Path(__file__).parents[4]
    for path in (each for package in PACKAGES for each in (root / package).rglob("*.py")):
        text = path.read_text()
        assert not re.search(r"(?:FileResponse|StreamingResponse)\([^)]*filename=", text), path
        named = [line for line in text.splitlines() if '"content-disposition": ' in line]
        assert all("build_disposition(" in line for line in named), path
