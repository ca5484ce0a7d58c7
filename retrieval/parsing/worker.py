"""`python -P -m retrieval.parsing.worker LIMITS`: extract the texts of files, one after the other, in a process that
may fail, and cut them.

Requests come by standard input, answers go by standard output (see `base`). `LIMITS` is a JSON object with the fields
of `ParsingLimits`. The process limits its memory, processor time, open files and priority, and cannot write files. It
ends when its input does.

PDFs are read by PDFium (pypdfium2: 4 MB, BSD and Apache), the other formats by the standard library. kreuzberg 4.10.4
was measured beside it and not taken: it drops every `&`, `<` and `>` of a DOCX ("R&D" becomes "RD"), gives no texts of
slides, takes PDFium's text too, in twice the time, writes a library into the temporary folder to do so, is 39 MB packed
and 98 MB installed, and is maintained until the end of 2026.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import resource
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from common.processes import return_freed_memory
from retrieval.parsing.base import (
    FRAME_HEAD,
    ParseRequest,
    ParsingError,
    ParsingLimits,
    TextBuilder,
    decode_request,
    encode_answer,
    encode_error,
    read_frame_head,
)
from retrieval.parsing.chunking import Heading, Structure, cut_text
from retrieval.parsing.formats.html import CONTAINER, extract_epub, extract_html, extract_mail, find_charset
from retrieval.parsing.formats.odf import MIMETYPE, TYPE, extract_odf
from retrieval.parsing.formats.office import OfficePackage, extract_docx, extract_pptx
from retrieval.parsing.formats.rtf import extract_rtf
from retrieval.parsing.formats.xlsx import extract_xlsx
from retrieval.parsing.media_types import DetectedFile, decode_text, detect_file

_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_GZIP: Final = b"\x1f\x8b"
_XML: Final = ("application/xml", "image/svg+xml")
_CHARSET: Final = re.compile(r"""charset\s*=\s*"?([\w.:-]{1,40})""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """The text of a file, not yet cut."""

    text: str
    """Never blank."""
    media_type: str
    """Detected, as in `ParsedDocument`."""
    structure: Structure
    """How the text is to be cut."""
    page_starts: Sequence[int] = ()
    """Offset in characters of each page, ascending; empty where the format has no pages."""
    headings: Sequence[Heading] = ()
    """Headings of a text whose structure is not `markdown` (a PDF's bookmarks); empty otherwise."""


_OVERSTRUCK: Final = re.compile(r"[^\n]\x08")
"""A character that the next one is printed over, as nroff writes bold and underlined words for printers."""


def extract_file(path: Path, filename: str | None, media_type: str | None, limits: ParsingLimits) -> ExtractedText:
    """Return the text of a file of any format that is read. Blocks; limits neither time nor memory.

    The caller has checked that the file has at most `limits.max_file_bytes` bytes. `filename`, `media_type`: as the
    client named them, None where it did not.

    Raises:
        ParsingError: the format is not read, or the file is empty, encrypted, malformed or beyond a limit.
        OSError: the file does not exist, or cannot be read.
        Exception: a damaged file may make the libraries raise any other exception.
    """
    data = path.read_bytes()
    if not data:
        raise ParsingError("document_empty", "the file is empty")
    detected = detect_file(data, filename, media_type)
    if detected.format == "gzip":
        data, detected = _open_gzip(data, filename, media_type, limits)
    builder = TextBuilder(limits)
    structure: Structure = "markdown"
    headings: Sequence[Heading] = ()
    kind = detected.media_type
    if detected.format == "text":
        in_file = find_charset(data) if kind in _XML else None
        text = _OVERSTRUCK.sub("", decode_text(data, _find_declared(media_type) or in_file))
        if len(text.encode("utf-8", "replace")) > limits.max_text_bytes:
            raise ParsingError("document_too_large", f"the text is larger than {limits.max_text_bytes} bytes")
        structure = detected.structure
    else:
        if detected.format == "html":
            extract_html(decode_text(data, _find_declared(media_type) or find_charset(data)), builder)
        elif detected.format == "mail":
            extract_mail(data, builder)
        elif detected.format == "rtf":
            extract_rtf(data, builder)
        elif detected.format == "pdf":
            # The library is loaded with the first PDF.
            from retrieval.parsing.formats.pdf import extract_pdf

            headings = extract_pdf(path, builder, limits)
            structure = "prose"
        else:
            kind = _extract_zip(path, builder, limits)
        text = builder.build()
    if not text or text.strip("\ufeff").isspace() or text == "\ufeff":
        reason = "its pages have no text, and are images perhaps" if kind == "application/pdf" else "it has no text"
        raise ParsingError("document_empty", f"nothing can be read from the file: {reason}")
    return ExtractedText(text, kind, structure, builder.page_starts, headings)


def _extract_zip(path: Path, builder: TextBuilder, limits: ParsingLimits) -> str:
    """Add the text of a DOCX, PPTX, XLSX, OpenDocument or EPUB, and return which it is."""
    with OfficePackage(path, limits) as package:
        if MIMETYPE in package.names and package.read_part(MIMETYPE).startswith(TYPE.encode()):
            return extract_odf(package, builder)
        if CONTAINER in package.names:
            extract_epub(package, builder)
            return "application/epub+zip"
        main_part = next((name for kind, name in package.read_relations("").values() if kind == "officeDocument"), "")
        if main_part.startswith("word/"):
            extract_docx(package, main_part, builder)
            return f"{_OFFICE}.wordprocessingml.document"
        if main_part.startswith("ppt/"):
            extract_pptx(package, main_part, builder)
            return f"{_OFFICE}.presentationml.presentation"
        if main_part.startswith("xl/") and main_part.endswith(".xml"):
            extract_xlsx(package, main_part, builder, limits)
            return f"{_OFFICE}.spreadsheetml.sheet"
    raise ParsingError(
        "unsupported_media_type",
        "the file is a ZIP archive, and no DOCX, PPTX, XLSX, ODT, ODS, ODP or EPUB: add the files in it",
    )


def _open_gzip(
    data: bytes, filename: str | None, media_type: str | None, limits: ParsingLimits
) -> tuple[bytes, DetectedFile]:
    """Return the text that a gzip archive holds, and what it is: its name is the archive's without `.gz`."""
    held = _expand(data, limits)
    detected = detect_file(held, (filename or "").removesuffix(".gz"), media_type)
    if detected.format in ("gzip", "pdf", "zip"):
        message = f"the gzip archive holds no text, but {detected.media_type}: add the file in it"
        raise ParsingError("unsupported_media_type", message)
    return held, detected


def _expand(data: bytes, limits: ParsingLimits) -> bytes:
    """Return what a gzip archive holds, which is the contents of all its members."""
    held, at = bytearray(), 0
    try:
        while data.startswith(_GZIP, at):
            member = zlib.decompressobj(31)
            while not member.eof and (block := data[at : at + 4096]):
                held += member.decompress(block, limits.max_text_bytes + 1 - len(held))
                if len(held) > limits.max_text_bytes:
                    raise ParsingError("document_too_large", "the file expands to more than is allowed")
                at += len(block) - len(member.unused_data)
            if not member.eof:
                raise ParsingError("document_malformed", "the gzip archive is cut off")
    except zlib.error as error:
        raise ParsingError("document_malformed", f"the gzip archive is damaged ({error})") from error
    if not held:
        raise ParsingError("document_empty", "the file in the gzip archive is empty")
    return bytes(held)


def _find_declared(media_type: str | None) -> str | None:
    found = _CHARSET.search(media_type or "")
    return found.group(1) if found else None


_NICENESS: Final = 10
_MOST_OPEN_FILES: Final = 64
_GRACE_S: Final = 10
"""Seconds after its time that the process ends itself, if nobody did."""


def main() -> None:
    """Parse the files that standard input asks for, one after the other, until it ends.

    Sets the limits of the first argument on this process for good. A file that takes too long ends the process by a
    signal (SIGXCPU, SIGALRM), without an answer. Raises FrameError, KeyError, TypeError or ValueError for input that is
    no request.
    """
    return_freed_memory()
    limits = ParsingLimits(**json.loads(sys.argv[1]))
    logging.disable()
    requests, answers = _take_pipes()
    _limit_process(limits)
    while head := requests.read(FRAME_HEAD.size):
        length, _ = read_frame_head(head, 0)
        request = decode_request(requests.read(length))
        _limit_time(limits)
        answer = answer_request(request, limits)
        signal.alarm(0)
        answers.write(answer)
        answers.flush()


def answer_request(request: ParseRequest, limits: ParsingLimits) -> bytes:
    """Parse a file, and return the frame of the answer: its text and chunks, or the code and text of a ParsingError.

    Blocks. Raises no Exception: MemoryError becomes the code `document_too_large`, RecursionError `document_malformed`,
    and any other exception of a library `parsing_failed`.
    """
    try:
        extracted = extract_file(request.path, request.filename, request.media_type, limits)
        chunks = cut_text(
            extracted.text, request.chunking, extracted.structure, extracted.page_starts, extracted.headings
        )
        return encode_answer(extracted.text, extracted.media_type, chunks, _measure_rss())
    except ParsingError as error:
        problem = error
    except MemoryError:
        problem = ParsingError("document_too_large", "parsing the file takes more memory than is allowed")
    except RecursionError:
        problem = ParsingError("document_malformed", "the file is nested too deeply")
    except Exception as error:  # noqa: BLE001 - whatever a file makes of the libraries
        problem = ParsingError("parsing_failed", f"the file cannot be read ({type(error).__name__}: {error!s:.200})")
    return encode_error(problem, _measure_rss())


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return input and output, and put others in their place: what a library prints goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, answers


def _limit_process(limits: ParsingLimits) -> None:
    """Limit what the process may take until it ends. A lower limit that is in force already stays."""
    os.nice(_NICENESS)
    for name, limit in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MOST_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(name, (bound, bound))


def _limit_time(limits: ParsingLimits) -> None:
    """Limit the processor time of the next file, and its time in case that the pool is gone. A signal ends the
    process then."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    bound = math.ceil(time.process_time() + limits.timeout_s)
    resource.setrlimit(resource.RLIMIT_CPU, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))
    signal.alarm(math.ceil(limits.timeout_s) + _GRACE_S)


def _measure_rss() -> int:
    """Return the memory that the process holds, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
