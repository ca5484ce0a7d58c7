"""Real documents for measurements: pages of Debian's documentation packages, as Markdown.

The packages are fetched by `apt-get download` and unpacked, never installed. Their licences are free, and differ; none
of their text is kept in this repository.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.extract import extract_file

PACKAGES: Final = (
    "apache2-doc",
    "apt-doc",
    "cmake-doc",
    "debian-faq",
    "debian-policy",
    "debmake-doc",
    "developers-reference",
    "git-doc",
    "postfix-doc",
    "postgresql-doc-15",
    "python-django-doc",
    "python3.11-doc",
    "sqlite3-doc",
)
PER_PACKAGE: Final = 450
SHORTEST, LONGEST = 800, 5_000
"""Characters of a document: longer ones would keep two cores busy for hours with embeddings."""
_OTHER_LANGUAGE: Final = re.compile(r"/(?!en/)[a-z]{2}(-[a-z]{2})?/")
_NO_ID: Final = re.compile(r"[^A-Za-z0-9._:-]")
_TEXTS: Final = "texts-1.json"


class DocumentsUnavailableError(Exception):
    """The packages cannot be had. The text says why."""


def load_documents(folder: Path) -> dict[str, str]:
    """Return documents, name to Markdown, always the same of the same packages. Fetches what is missing in `folder`.

    Raises:
        DocumentsUnavailableError: see there.
    """
    kept = folder / _TEXTS
    if not kept.exists():
        documents: dict[str, str] = {}
        for package in PACKAGES:
            documents |= _choose_pages(package, _unpack(package, folder))
        kept.write_text(json.dumps(_drop_equal(documents)))
    loaded: dict[str, str] = json.loads(kept.read_text())
    return loaded


def _unpack(package: str, folder: Path) -> Path:
    place = folder / package
    if place.exists():
        return place
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{package}.unfinished"
    try:
        if not any(archives.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=archives, check=True, capture_output=True, text=True)
        [archive] = archives.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, unfinished], check=True, capture_output=True, text=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise DocumentsUnavailableError(f"{package}: {reason} (apt-get update helps perhaps)") from None
    unfinished.rename(place)
    return place


def _choose_pages(package: str, place: Path) -> dict[str, str]:
    """Up to `PER_PACKAGE` pages in English, by the hash of their names: of all parts of the package."""
    paths = [path for pattern in ("*.html", "*.html.en") for path in place.rglob(pattern) if path.is_file()]
    by_name = {
        _NO_ID.sub("_", ":".join([package, *path.relative_to(place).parts[3:]])): path  # below usr/share/doc
        for path in paths
        if not path.is_symlink() and not _OTHER_LANGUAGE.search(str(path))
    }
    chosen: dict[str, str] = {}
    for name in sorted(by_name, key=lambda each: hashlib.sha256(each.encode()).digest()):
        try:
            text = extract_file(by_name[name], "page.html", "text/html", ParsingLimits()).text
        except ParsingError:
            continue
        if SHORTEST <= len(text) <= LONGEST:
            chosen[name] = text
        if len(chosen) == PER_PACKAGE:
            break
    return chosen


def _drop_equal(documents: Mapping[str, str]) -> dict[str, str]:
    return dict({text: (name, text) for name, text in documents.items()}.values())
