"""Forms with one file, in parts of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.api.form_parser import LONGEST_FIELD, FormError, FormParser, UploadedFile

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
    [("application/octet-stream", None), ("Text/HTML; charset=utf-8", "text/html"), ("", None)],
)
def test_a_type_of_no_use_is_none(declared: str, media_type: str | None) -> None:
    assert parse(make_form(upload(b"x", "Maße.txt", declared)))[1] == UploadedFile("Maße.txt", media_type)


@pytest.mark.parametrize(
    ("form", "at_fault"),
    [
        (make_form(), "file"),
        (make_form(field("id", b"x")), "file"),
        (make_form(field("file", b"x")), "file"),
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
