"""`python -m gateway.documents.extract_text`: the text of one PDF, read in a process that may fail alone.

On standard input comes the file in base64; on standard output goes one JSON object, with `text` or with `problem`, a
sentence for whoever sent the file. The process takes no more memory, processor time and files than its limits.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import resource
import sys
from collections.abc import Iterable
from io import BytesIO
from typing import Final

MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""Address space, Python and the file itself included."""
CPU_S: Final = 20
MOST_TEXT_BYTES: Final = 8 * 1024 * 1024
NO_MEMORY: Final = "reading it takes too much memory"


class UnreadableFileError(Exception):
    """The file has no text that can be told. Its message says why."""


def extract_text(data: bytes) -> str:
    """The text of a PDF, page after page.

    Raises:
        UnreadableFileError: it is damaged, encrypted, or holds no text, or more than may be.
    """
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(BytesIO(data))
        is_locked = reader.is_encrypted and not reader.decrypt("")
        pages = [] if is_locked else _take_within_limit(page.extract_text() for page in reader.pages)
    except PyPdfError as error:
        raise UnreadableFileError(f"it is no PDF that can be read ({error})") from error
    if is_locked:
        raise UnreadableFileError("it is encrypted, and needs a password")
    if not pages:
        raise UnreadableFileError("it holds no text: its pages are images, perhaps")
    return "\n\n".join(pages)


def _take_within_limit(texts: Iterable[str]) -> list[str]:
    """Those that are not blank."""
    pages, size = [], 0
    for text in filter(None, map(str.strip, texts)):
        size += len(text.encode(errors="replace"))
        if size > MOST_TEXT_BYTES:
            raise UnreadableFileError(f"its text is more than {MOST_TEXT_BYTES} bytes")
        pages.append(text)
    return pages


def main() -> None:
    """Read, and tell."""
    logging.disable()
    limit_resources()
    try:
        data = base64.b64decode(sys.stdin.buffer.read(), validate=True)
        result = {"text": extract_text(data)}
    except UnreadableFileError as error:
        result = {"problem": str(error)[:300]}
    except (binascii.Error, ValueError):
        result = {"problem": "it is no base64, or no PDF that can be read"}
    except MemoryError:
        result = {"problem": NO_MEMORY}
    except Exception as error:  # noqa: BLE001 - whatever a file makes of the library
        result = {"problem": f"it is no PDF that can be read ({type(error).__name__})"}
    sys.stdout.buffer.write(json.dumps(result, ensure_ascii=True).encode())


def limit_resources() -> None:
    """Of this process, for good."""
    for name, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard_limit = resource.getrlimit(name)
        bound = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        resource.setrlimit(name, (bound, bound))


if __name__ == "__main__":
    main()
