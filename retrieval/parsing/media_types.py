"""Tell what a file is: by its content first, then by its name, then by the media type that a client declared; and
decode the bytes of a text. Pure.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from retrieval.parsing.base import ParsingError
from retrieval.parsing.chunking import Structure

_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),  # it stays in the text
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NOT_OF_FILES: Final = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
"""Encodings that Python knows and that no file is in. Some take quadratic time."""
_SUPERSETS: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
"""What files that name an encoding are in more often, by Python's name for it: as browsers read them."""
_SHIFTED: Final = re.compile(rb"\x1b\$(?:[@B]|\([CD]|\)C)|~\{(?:[!-w][!-~]){2,2000}?~\}")
"""Where a text of ISO 2022 for Japanese or Korean, or of HZ for Chinese, leaves ASCII. All its bytes are UTF-8, too."""
_DETECTED: Final = (
    *(f"windows-{number}" for number in range(1250, 1259)),
    *("iso-8859-2", "iso-8859-5", "iso-8859-7", "iso-8859-9", "koi8-r", "koi8-u", "maccyrillic", "macroman"),
    *("cp437", "cp850", "cp852", "ibm866", "cp874", "gb18030", "big5", "euc-jp", "cp932", "cp949"),
    *("shift_jis", "euc-kr", "iso-2022-jp", "iso-2022-kr", "hz"),
)
"""What files without a declaration are in. Among rarer ones the detector finds wrong ones more often."""
_LEAST_CONFIDENCE: Final = 0.085
"""Of the detector, from 0 to 1. Of 98 texts of a few words, it was wrong for none above and five below."""
_SAMPLE_BYTES: Final = 4096
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_CONTROL: Final = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that texts do not have: not bell to carriage return (terminals' logs), and not escape."""
_MOST_CONTROLS: Final = 0.001
"""Part of the characters that may be controls, for texts with a stray one."""


def decode_text(data: bytes, declared: str | None = None) -> str:
    """Return the characters of a text file, decoded by the first of these that fits: a byte order mark, the declared
    encoding, UTF-8, UTF-16 without a mark, UTF-8 with some damage, and what a detector is sure enough of.

    A byte order mark of UTF-8 stays in the text as its first character, so that offsets hold in the file. Bytes that
    cannot be decoded become U+FFFD if they are few. Empty data gives empty text.

    `declared`: name of an encoding, from the media type or the content, that may be wrong or unknown; None if nothing
    was declared.

    Raises:
        ParsingError: `document_not_text`: no encoding fits, or the characters are those of a binary file.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            text = _decode(data, encoding)
            return _check_text(_decode_damaged_utf_8(data) if text is None and encoding == "utf-8" else text)
    text = None if declared is None else _decode_declared(data, declared)
    if text is None and not _SHIFTED.search(data):
        text = _decode(data, "utf-8")
    if text is None or "\x00" in text[:_SAMPLE_BYTES]:
        text = _decode(data, _guess_utf_16(data)) or text
    if text is None:
        text = _decode_damaged_utf_8(data)
    if text is None:
        text = _decode_detected(data) or _decode(data, "utf-8")
    return _check_text(text)


def _decode(data: bytes, encoding: str | None) -> str | None:
    """Return None where the bytes are not in that encoding, or it is unknown or none of texts."""
    if encoding is None:
        return None
    try:
        return None if codecs.lookup(encoding).name in _NOT_OF_FILES else data.decode(encoding)
    except (LookupError, ValueError):
        return None


def _decode_declared(data: bytes, declared: str) -> str | None:
    try:
        name = codecs.lookup(declared).name
    except (LookupError, ValueError):
        return None
    text = _decode(data, _SUPERSETS.get(name))
    return _decode(data, declared) if text is None else text


def _decode_detected(data: bytes) -> str | None:
    """Return None where the detector is not sure enough, or many of the bytes are not in the encoding that it found in
    the first 200,000."""
    # Loads its model, which texts in UTF-8 do not need.
    import chardet

    found = chardet.detect(data, include_encodings=_DETECTED, no_match_encoding="ascii")
    if found["encoding"] is None or found["confidence"] < _LEAST_CONFIDENCE:
        return None
    name = codecs.lookup(found["encoding"]).name
    text = data.decode(_SUPERSETS.get(name, name), "replace")
    return None if text.count("\ufffd") > _MOST_CONTROLS * len(text) else text


def _decode_damaged_utf_8(data: bytes) -> str | None:
    """Return None unless most of the characters beyond ASCII are intact; those that are not become U+FFFD."""
    text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    intact = len(_BEYOND_ASCII.findall(text)) - damaged
    return text if damaged * 4 < intact else None


def _guess_utf_16(data: bytes) -> str | None:
    """Return the byte order of UTF-16 if every other byte is zero in much of the text."""
    sample = data[:_SAMPLE_BYTES]
    if len(data) % 2 or len(sample) < 4:
        return None
    pairs = len(sample) // 2
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if odd > 0.4 * pairs and even < 0.05 * pairs:
        return "utf-16-le"
    if even > 0.4 * pairs and odd < 0.05 * pairs:
        return "utf-16-be"
    return None


def _check_text(text: str | None) -> str:
    if text is None or "\x00" in text or len(_CONTROL.findall(text)) > max(1, _MOST_CONTROLS * len(text)):
        raise ParsingError(
            "document_not_text",
            "the file is binary, or text in an encoding that is not recognised: convert it to UTF-8, or name its "
            "encoding, as in `text/plain; charset=windows-1250`",
        )
    return text


FileFormat = Literal["text", "html", "mail", "pdf", "rtf", "zip", "gzip"]
"""How the file is read. `zip`: DOCX, PPTX, XLSX, OpenDocument or EPUB, which the parts of the archive tell apart.
`gzip`: it holds another file."""


@dataclass(frozen=True, slots=True)
class DetectedFile:
    """Which format a file is in, and so how it is read."""

    format: FileFormat
    media_type: str
    """Without parameters. For the format `zip` it is `application/zip`, until the archive is opened."""
    structure: Structure = "prose"
    """How the text is cut; meaningful for the format `text` alone."""


_REFUSED: Final = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"OggS", "a sound or a film"),
    (b"fLaC", "a sound"),
    (b"\x1aE\xdf\xa3", "a film"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"(\xb5/\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\x00", "a program"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"%!PS", "a PostScript document"),
    (b"AT&TFORM", "a DjVu document"),
)
"""What a file begins with, and what it is then. None of these is read."""
_REFUSED_PATTERNS: Final = (
    (re.compile(rb"GIF8[79]a"), "a GIF image"),
    (re.compile(rb"RIFF[\x00-\xff]{4}(?:WAVE|WEBP|AVI |ACON|RMID)"), "an image, a sound or a film"),
    (re.compile(rb"ID3[\x02-\x04]"), "a sound"),
    (re.compile(rb"[\x00-\xff]{257}ustar"), "a tar archive"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "a bzip2 archive"),
)
"""The same for marks that begin with what a text may begin with."""
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE: Final = "EncryptedPackage".encode("utf-16-le")
_PDF_WITHIN: Final = 1024
"""Readers of PDF accept its first mark within so many bytes."""
_HTML: Final = re.compile(
    rb"""(?isx) \s* (?:<\?xml[^>]{0,200}\?>\s*)? (?:<!--(?:(?!-->).){0,2000}-->\s*)* <(?:!doctype\s+html|html[\s>])"""
)
_MAIL: Final = re.compile(rb"(?i)(?:Received|Return-Path|Message-ID|MIME-Version|Delivered-To|From|Date|Subject): ")
_HEADER: Final = re.compile(rb"[!-9;-~]{1,76}:[ \t]|[ \t]")

_MARKDOWN: Final = DetectedFile("text", "text/markdown", "markdown")
_PLAIN: Final = DetectedFile("text", "text/plain")
_HTML_FILE: Final = DetectedFile("html", "text/html")
_MAIL_FILE: Final = DetectedFile("mail", "message/rfc822")

_BY_NAME: Final[dict[str, DetectedFile]] = {
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"), _MARKDOWN),
    **dict.fromkeys((".txt", ".text", ".rst", ".adoc", ".asciidoc", ".org", ".tex", ".srt", ".vtt"), _PLAIN),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _HTML_FILE),
    ".eml": _MAIL_FILE,
    ".log": DetectedFile("text", "text/plain", "lines"),
    ".csv": DetectedFile("text", "text/csv", "records"),
    ".tsv": DetectedFile("text", "text/tab-separated-values", "records"),
    **dict.fromkeys((".json", ".ipynb", ".geojson"), DetectedFile("text", "application/json", "lines")),
    **dict.fromkeys((".jsonl", ".ndjson"), DetectedFile("text", "application/x-ndjson", "lines")),
    **dict.fromkeys((".xml", ".xsd", ".xsl", ".rss", ".atom"), DetectedFile("text", "application/xml", "lines")),
    ".svg": DetectedFile("text", "image/svg+xml", "lines"),
    **dict.fromkeys((".yaml", ".yml"), DetectedFile("text", "application/yaml", "lines")),
    ".toml": DetectedFile("text", "application/toml", "lines"),
}
_LANGUAGES: Final = {
    "python": (".py", ".pyi", ".pyw"),
    "javascript": (".js", ".mjs", ".cjs", ".jsx"),
    "typescript": (".ts", ".mts", ".cts", ".tsx"),
    "c": (".c", ".h"),
    "c++": (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".cu", ".cuh", ".ino"),
    "csharp": (".cs",),
    "java": (".java",),
    "kotlin": (".kt", ".kts"),
    "scala": (".scala",),
    "go": (".go",),
    "rust": (".rs",),
    "swift": (".swift",),
    "ruby": (".rb",),
    "php": (".php",),
    "perl": (".pl", ".pm"),
    "lua": (".lua",),
    "r": (".r",),
    "julia": (".jl",),
    "haskell": (".hs",),
    "ocaml": (".ml", ".mli"),
    "elixir": (".ex", ".exs"),
    "erlang": (".erl",),
    "clojure": (".clj",),
    "lisp": (".el", ".lisp", ".scm"),
    "zig": (".zig",),
    "dart": (".dart",),
    "fortran": (".f", ".f90"),
    "pascal": (".pas",),
    "asm": (".s", ".asm"),
    "sql": (".sql",),
    "shellscript": (".sh", ".bash", ".zsh", ".fish"),
    "powershell": (".ps1",),
    "batch": (".bat", ".cmd"),
    "css": (".css", ".scss", ".less"),
    "vue": (".vue", ".svelte"),
    "protobuf": (".proto",),
    "cmake": (".cmake",),
    "makefile": (".mk", "makefile"),
    "dockerfile": (".dockerfile", "dockerfile"),
    "terraform": (".tf",),
    "config": (".ini", ".cfg", ".conf", ".properties", ".env"),
    "diff": (".diff", ".patch"),
}
_CODE: Final = {
    suffix: DetectedFile("text", f"text/x-{language}", "lines")
    for language, suffixes in _LANGUAGES.items()
    for suffix in suffixes
}
_BY_TYPE: Final[dict[str, DetectedFile]] = {
    **{each.media_type: each for each in (*_CODE.values(), *_BY_NAME.values())},
    "text/plain": _PLAIN,
    "text/x-markdown": _MARKDOWN,
    "application/xhtml+xml": _HTML_FILE,
    "text/xml": _BY_NAME[".xml"],
    "text/json": _BY_NAME[".json"],
    "text/yaml": _BY_NAME[".yaml"],
    "application/javascript": _CODE[".js"],
    "text/javascript": _CODE[".js"],
    "application/sql": _CODE[".sql"],
    "text/css": _CODE[".css"],
}


def detect_file(data: bytes, filename: str | None, media_type: str | None) -> DetectedFile:
    """Return the format of a file. The first of these that identifies it decides: marks in the content, the name's
    suffix, the media type, markup in the content. A file that nothing identifies is `text/plain`. A file whose name or
    type is that of plain text may still be recognised as HTML by its markup. Whether the file is intact is not checked.

    `data`: the whole file. `filename`, `media_type`: as the client named them; None: it did not. The type may have
    parameters; an unknown or generic one is ignored. A file that starts with the mark of a ZIP archive, gzip, RTF or a
    PDF is one whatever its name says. `%PDF-` further on in its first 1024 bytes means a PDF, too, unless its name or
    type is that of a text.

    Raises:
        ParsingError: `unsupported_media_type` for images, sounds, films, other archives, programs and old Office
            documents, told by their first bytes; `document_encrypted` for an encrypted Office document.
    """
    if data.startswith(b"PK\x03\x04"):
        return DetectedFile("zip", "application/zip")
    if data.startswith(b"\x1f\x8b"):
        return DetectedFile("gzip", "application/gzip")
    if data.startswith(b"{\\rtf"):
        return DetectedFile("rtf", "application/rtf")
    named = _find_by_name(filename) or _BY_TYPE.get((media_type or "").partition(";")[0].strip().lower())
    pdf_mark_at = data.find(b"%PDF-", 0, _PDF_WITHIN)
    if pdf_mark_at >= 0 and (named is None or not data[:pdf_mark_at].strip()):
        return DetectedFile("pdf", "application/pdf")
    _refuse_binary(data)
    if named is not None:
        # A name of text hides neither markup nor mail, but HTML is HTML whatever it is called.
        return _HTML_FILE if named is _PLAIN and _HTML.match(data) else named
    if _HTML.match(data):
        return _HTML_FILE
    if _is_mail(data):
        return _MAIL_FILE
    if data.startswith(b"#!"):
        return DetectedFile("text", "text/x-script", "lines")
    return _PLAIN


def _refuse_binary(data: bytes) -> None:
    if data.startswith(_OLE):
        if _ENCRYPTED_PACKAGE in data:
            raise ParsingError("document_encrypted", "the document is encrypted, and needs a password")
        message = "the file is in Office's old binary format (DOC, XLS, PPT or MSG): save it as DOCX, XLSX, PPTX or EML"
        raise ParsingError("unsupported_media_type", message)
    kinds = [kind for mark, kind in _REFUSED if data.startswith(mark)]
    for kind in [*kinds, *(kind for pattern, kind in _REFUSED_PATTERNS if pattern.match(data))]:
        raise ParsingError("unsupported_media_type", f"the file is {kind}, of which no text is read")


def _find_by_name(filename: str | None) -> DetectedFile | None:
    if filename is None:
        return None
    name = PurePath(filename).name.lower()
    suffix = PurePath(name).suffix
    for key in (suffix, name, f".{name}" if name == "env" else ""):
        if found := _BY_NAME.get(key) or _CODE.get(key):
            return found
    return None


def _is_mail(data: bytes) -> bool:
    """Whether the first lines are headers, at least two of them headers of e-mail."""
    known = 0
    for line in data[:4096].split(b"\n")[:-1][:20]:
        if not line.strip():
            break
        if not _HEADER.match(line):
            return False
        known += _MAIL.match(line) is not None
    return known >= 2
