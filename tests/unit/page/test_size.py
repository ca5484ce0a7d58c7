"""How much a browser loads before the chat can be used."""

from __future__ import annotations

import gzip
import re

from gateway.page.page_files import BUILT_FOLDER, INDEX
from tests.support.require import require

LARGEST_KB = 400
"""Of JavaScript and styles that the page itself names, compressed, in units of 1,000 bytes."""
NAMED = re.compile(r'(?:src|href)="/page/([^"]+\.(?:js|css))"')


def test_what_the_page_loads_at_first_is_small() -> None:
    require("page", (BUILT_FOLDER / INDEX).exists(), "the page is not built: `make page`")
    names = NAMED.findall((BUILT_FOLDER / INDEX).read_text())
    assert any(name.endswith(".js") for name in names)
    assert any(name.endswith(".css") for name in names)
    sizes = {name: len(gzip.compress((BUILT_FOLDER / name).read_bytes(), 9)) for name in names}
    assert sum(sizes.values()) <= LARGEST_KB * 1000, sizes


def test_fonts_are_there_in_one_format() -> None:
    require("page", (BUILT_FOLDER / INDEX).exists(), "the page is not built: `make page`")
    fonts = [path for path in BUILT_FOLDER.rglob("*") if path.suffix in (".woff2", ".woff", ".ttf", ".otf", ".eot")]
    assert any(path.name.startswith("KaTeX_Main-Regular") for path in fonts)
    assert {path.suffix for path in fonts} == {".woff2"}
    styles = "".join(path.read_text() for path in BUILT_FOLDER.rglob("*.css"))
    named = set(re.findall(r"/page/(assets/[\w.-]+\.woff2)", styles))
    assert named == {str(path.relative_to(BUILT_FOLDER)) for path in fonts}
