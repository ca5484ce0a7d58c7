"""The files of the built page, with the headers that keep foreign code and foreign hosts away from it."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "media-src data: blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_FRAME_POLICIES: Final = {
    # What a model wrote as HTML, shown on demand: its scripts run without an origin, and reach no network.
    "preview.html": "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            "script-src 'unsafe-inline'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "media-src data: blob:",
            "font-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    ),
    # Mermaid writes style elements and attributes into its drawing, which the page's own policy forbids.
    "diagram.html": "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self' 'unsafe-inline'",
            "font-src 'self' data:",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    ),
}
FRAMES: Final = frozenset(_FRAME_POLICIES)
"""Documents that the page shows in sandboxed frames, by their paths below `/page/`."""


def security_headers(path: str) -> dict[str, str]:
    """Return the security headers of the file at `path`, relative to `/page/`; the page itself is `index.html`.

    Frames of untrusted content have a policy of their own: a sandbox without an origin, which reaches no network.
    """
    headers = {
        "content-security-policy": _FRAME_POLICIES.get(path, _PAGE_POLICY),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), microphone=(self), geolocation=()",
    }
    if path in FRAMES:
        return headers
    # Scripts of a sandboxed frame are fetched by a document without an origin, so the files allow every origin: they
    # hold no data, and the page itself is answered to everybody.
    cors = {"access-control-allow-origin": "*"} if path != "index.html" else {"x-frame-options": "DENY"}
    return headers | cors


INDEX: Final = "index.html"
BUILT_FOLDER: Final = Path(__file__).parent / "built"
"""Where `make page` and the images put what `web/` is built into. Absent in a work tree until it was built."""
_ASSETS: Final = "assets/"
"""Files below this folder have a hash of their content in their name, so that they never change."""
_TYPES: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".woff2": "font/woff2"}
"""Content types that the machine's own table may lack or have wrong."""
_COMPRESSED: Final = frozenset({"text/html", "text/css", "text/javascript", "application/json", "image/svg+xml"})
_SMALLEST_COMPRESSED: Final = 512
"""Bytes below which compression saves nothing."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A built file of the page in memory: its content, plain and compressed, and what its HTTP headers say. `gzipped`
    None: compressed, it would not be smaller."""

    content_type: str
    """With the charset for texts."""
    body: bytes
    gzipped: bytes | None
    """`body` compressed by gzip; None: it would not be smaller."""
    etag: str
    """As the header has it; by content. Weak, because it stands for the compressed file too."""
    is_immutable: bool
    """Whether the file's name changes with its content, so that a browser may keep the file for good."""


class PageFiles:
    """The built files, by their paths relative to the folder, in memory. There are none before the first `read_files`.
    Call `read_files` whenever `is_current` is False, so that a gateway that runs serves what was built meanwhile."""

    def __init__(self, folder: Path) -> None:
        """`folder`: what `web/` is built into. It may be missing, or come later."""
        self._folder = folder
        self._files: Mapping[str, PageFile] = {}
        self._built_at: int | None = None

    def is_current(self) -> bool:
        """Return whether the files in memory are those that lie in the folder now; else call `read_files`. Costs one
        `stat`."""
        return self._find_built_at() == self._built_at

    def read_files(self) -> None:
        """Read and compress the files of the folder, in place of those read before. Blocks, for about 0.2 s.

        A folder without `index.html` has no files: it was not built, or is being built. Files whose names begin with a
        dot are the build's own, and are not read. Raises OSError if a file cannot be read; then the files read before
        stay.
        """
        built_at = self._find_built_at()
        files = {}
        for path in () if built_at is None else sorted(self._folder.rglob("[!.]*")):
            # A build removes the files of the build before it after it has put its own in place.
            with suppress(FileNotFoundError):
                if path.is_file():
                    files[path.relative_to(self._folder).as_posix()] = _read_file(path, self._folder)
        self._files = files
        self._built_at = built_at

    def find_file(self, path: str) -> PageFile | None:
        """Return the file at `path`, relative to the folder, as it was read last; None: there was no such file. Touches
        no disk."""
        return self._files.get(path)

    def _find_built_at(self) -> int | None:
        try:
            return (self._folder / INDEX).stat().st_mtime_ns
        except OSError:
            return None


def _read_file(path: Path, folder: Path) -> PageFile:
    body = path.read_bytes()
    content_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    gzipped = None
    if content_type in _COMPRESSED and len(body) >= _SMALLEST_COMPRESSED:
        gzipped = gzip.compress(body, 9, mtime=0)
    is_text = content_type.startswith("text/")
    return PageFile(
        f"{content_type}; charset=utf-8" if is_text else content_type,
        body,
        gzipped,
        f'W/"{hashlib.sha256(body).hexdigest()[:24]}"',
        path.relative_to(folder).as_posix().startswith(_ASSETS),
    )
