"""What is read of a built folder, and when it is read again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.page.page_files import FRAMES, INDEX, PageFiles, security_headers
from tests.support.outcomes import present

SCRIPT = b"console.log('hello');\n" * 100


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder as `web/build` leaves it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / INDEX).write_text("<!doctype html>" + " " * 600)
    (tmp_path / "assets" / "index-a1.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "font.woff2").write_bytes(b"wOF2" + os.urandom(2000))
    (tmp_path / "icon.svg").write_text("<svg/>")
    (tmp_path / ".sources").write_text("f00")
    return tmp_path


def read(folder: Path) -> PageFiles:
    files = PageFiles(folder)
    assert not files.is_current() or not (folder / INDEX).exists()
    files.read_files()
    return files


def found(files: PageFiles, path: str) -> Any:
    return present(files.find_file(path))


def test_files_have_types_and_are_compressed_where_that_is_smaller(built: Path) -> None:
    files = read(built)
    script, font, icon = (found(files, path) for path in ("assets/index-a1.js", "assets/font.woff2", "icon.svg"))
    assert (script.content_type, script.body) == ("text/javascript; charset=utf-8", SCRIPT)
    assert gzip.decompress(script.gzipped) == SCRIPT
    assert len(script.gzipped) < len(SCRIPT)
    assert (font.content_type, font.gzipped) == ("font/woff2", None)
    assert (icon.content_type, icon.gzipped) == ("image/svg+xml", None), "too small to be worth it"
    assert (script.is_immutable, found(files, INDEX).is_immutable) == (True, False), "by a hash in its name"


def test_what_the_build_notes_for_itself_and_what_lies_outside_is_not_found(built: Path) -> None:
    (built.parent / "secret").write_text("secret")
    files = read(built)
    for path in (".sources", "../secret", "assets/../index.html", f"{built}/index.html", "assets", "assets/", ""):
        assert files.find_file(path) is None, path


def test_a_folder_that_is_missing_or_has_no_index_has_no_files_until_it_is_built(built: Path, tmp_path: Path) -> None:
    files = read(tmp_path / "later")
    assert files.is_current()
    built.rename(tmp_path.parent / "moved")
    tmp_path.mkdir()
    (tmp_path.parent / "moved").rename(tmp_path / "later")
    assert not files.is_current()
    files.read_files()
    assert files.is_current()
    assert found(files, "assets/index-a1.js")
    (tmp_path / "later" / INDEX).unlink()
    files = read(tmp_path / "later")
    assert (files.is_current(), files.find_file("assets/index-a1.js")) == (True, None)


def test_a_new_build_is_read_once_its_index_is_there(built: Path) -> None:
    files = read(built)
    before = found(files, INDEX)
    (built / "assets" / "index-b2.js").write_bytes(SCRIPT)
    assert files.is_current(), "the build is not whole yet"
    index = built / "new.html"
    index.write_text("<!doctype html> new")
    os.utime(index, ns=(0, 1))
    index.rename(built / INDEX)
    assert not files.is_current()
    files.read_files()
    assert found(files, "assets/index-b2.js")
    after = found(files, INDEX)
    assert (after.body, after.etag != before.etag) == (b"<!doctype html> new", True)


def test_a_file_that_a_build_removes_meanwhile_is_left_out(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = Path.read_bytes

    def read_or_vanish(path: Path) -> bytes:
        if path.name == "index-a1.js":
            path.unlink()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_or_vanish)
    files = read(built)
    assert files.find_file("assets/index-a1.js") is None
    assert files.find_file(INDEX) is not None


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; connect-src 'self'; frame-src 'self'; worker-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
POLICIES = {
    "index.html": PAGE_POLICY,
    "assets/index-a1.js": PAGE_POLICY,
    "preview.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "diagram.html": "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
}


@pytest.mark.parametrize("path", POLICIES)
def test_the_policy_of_each_document_lets_no_foreign_host_in_nor_a_model_reach_one(path: str) -> None:
    assert POLICIES.keys() >= FRAMES
    policy = security_headers(path)["content-security-policy"]
    assert policy == POLICIES[path]
    assert not [word for word in ("http", "*", "unsafe-eval") if word in policy]
    assert (policy != PAGE_POLICY) is (path in FRAMES)
    if path in FRAMES:
        assert "allow-same-origin" not in policy
        assert "connect-src" not in policy, "default-src 'none' stands"


def test_the_page_is_in_no_frame_and_its_files_may_be_read_by_frames_without_an_origin() -> None:
    assert security_headers("index.html") == {
        "content-security-policy": PAGE_POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), microphone=(self), geolocation=()",
        "x-frame-options": "DENY",
    }
    asset = security_headers("assets/index-a1.js")
    assert ("x-frame-options" in asset, asset["access-control-allow-origin"]) == (False, "*")
    for path in FRAMES:
        assert not {"x-frame-options", "access-control-allow-origin"} & security_headers(path).keys()
