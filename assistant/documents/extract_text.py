"""`python -m assistant.documents.extract_text`: extract the text of one PDF, in a process of its own that may fail.

Standard input is the file in base64. Standard output is one JSON object, with `text`, or with `problem`, a sentence for
the client that sent the file. The process limits its memory and processor time, and cannot write files.
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
"""Address space of the process, Python and the file included."""
CPU_S: Final = 20
MOST_TEXT_BYTES: Final = 8 * 1024 * 1024
NO_MEMORY: Final = "reading it takes too much memory"


class UnreadableFileError(Exception):
    """No text can be extracted from the file. The message says why."""


def extract_text(data: bytes) -> str:
    """Return the text of a PDF, its pages separated by blank lines, without pages that have none.

    Sets no limits of memory and time: call `limit_resources` first, in a process of its own.

    Raises:
        UnreadableFileError: pypdf refuses the file, it needs a password, or it holds no text or more than
            `MOST_TEXT_BYTES` (8 MiB). A damaged file may make pypdf raise any other exception too.
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
    """Return the texts that are not blank, stripped; raise UnreadableFileError beyond `MOST_TEXT_BYTES`."""
    pages, size = [], 0
    for text in filter(None, map(str.strip, texts)):
        size += len(text.encode(errors="replace"))
        if size > MOST_TEXT_BYTES:
            raise UnreadableFileError(f"its text is more than {MOST_TEXT_BYTES} bytes")
        pages.append(text)
    return pages


def main() -> None:
    """Read the file's base64 from standard input and write a JSON object to standard output: `text`, or `problem` with
    what is wrong with the file.

    Limits the resources of the process first. Writes nothing if the limit of processor time ends it. Cannot write files
    afterwards: see `limit_resources`.
    """
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
    """Limit this process, until it ends, to `MEMORY_BYTES` (1 GiB) of address space, `CPU_S` (20) seconds of processor
    time, no bytes written to files and no core dump. A lower hard limit that is in force already is kept; a lower soft
    limit is raised. Cannot be undone."""
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
