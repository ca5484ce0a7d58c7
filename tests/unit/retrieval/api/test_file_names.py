"""Names of files in headers: no paths, nothing unseen, nothing that a client reads as another header."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.api.file_names import MOST_NAME_BYTES, build_disposition, clean_file_name

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
        ("..", None),
        ("a/", None),
        ("", None),
        ("\u202e\0", None),
        ("\u200d.", None),
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
