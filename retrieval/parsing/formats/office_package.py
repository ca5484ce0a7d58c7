"""Reads ZIP files that hold XML (Office Open XML, EPUB), within limits, and without a DTD's entities."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import unquote
from xml.parsers import expat

from retrieval.parsing.base import ParsingError, ParsingLimits

_MOST_PARTS: Final = 100_000
_BLOCK_BYTES: Final = 1024 * 1024
_EXPANSION: Final = 8
"""Bytes of XML that may be read per byte of text that is allowed."""

StartHandler = Callable[[str, Mapping[str, str]], None]
EndHandler = Callable[[str], None]
TextHandler = Callable[[str], None]


class OfficePackage:
    """An open ZIP file, which the `with` statement closes.

    Its parts are decompressed as they are read, each time anew. All of them together, repeated reads too, may expand
    to 8 times `limits.max_text_bytes`.
    """

    def __init__(self, path: Path, limits: ParsingLimits) -> None:
        """Open the file, and read its table of contents. Blocks, as all methods do; `names` are the names of its parts.

        Raises:
            ParsingError: `document_malformed`: it is no intact ZIP file; `document_encrypted`: a part of it is;
                `document_too_large`: it has more than 100,000 parts.
            OSError: the file cannot be opened.
        """
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise ParsingError("document_malformed", f"the file is no intact ZIP archive ({error})") from error
        self._left = limits.max_text_bytes * _EXPANSION
        infos = self._archive.infolist()
        if len(infos) > _MOST_PARTS:
            raise ParsingError("document_too_large", f"the file has more than {_MOST_PARTS} parts")
        if any(info.flag_bits & 1 for info in infos):
            raise ParsingError("document_encrypted", "the file is encrypted, and needs a password")
        self.names = frozenset(info.filename for info in infos)

    def __enter__(self) -> OfficePackage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._archive.close()

    def read_part(self, name: str) -> bytes:
        """Return a part's bytes. Blocks.

        Raises:
            ParsingError: `document_malformed`: the part is missing or damaged; `document_too_large`: the parts read so
                far expand to more than is allowed.
        """
        blocks: list[bytes] = []
        self._read_blocks(name, blocks.append)
        return b"".join(blocks)

    def parse_part(
        self, name: str, start: StartHandler, end: EndHandler | None = None, text: TextHandler | None = None
    ) -> None:
        """Parse a part as XML, and call the handlers in the order of the part: `start` with the name and the attributes
        of an element, `end` with its name, `text` with characters between; a handler that is None is not called. Names
        have no namespace; of attributes whose names are then equal, the last is given. Exceptions of the handlers pass
        through, except ValueError and LookupError, which become ParsingError. Blocks.

        Raises:
            ParsingError: `document_malformed`: the part is missing, damaged, no XML, or declares entities;
                `document_too_large`: the parts read so far expand to more than is allowed.
        """
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = lambda tag, attributes: start(_get_local_name(tag), _get_attributes(attributes))
        if end is not None:
            parser.EndElementHandler = lambda tag: end(_get_local_name(tag))
        if text is not None:
            parser.CharacterDataHandler = text
        parser.EntityDeclHandler = _refuse_entity
        try:
            self._read_blocks(name, lambda block: parser.Parse(block, False))
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError, ValueError) as error:
            # The last two: of an encoding that is unknown, or that expat cannot read.
            raise ParsingError("document_malformed", f"{name} in the file is no well-formed XML ({error})") from error

    def read_relations(self, name: str) -> dict[str, tuple[str, str]]:
        """Return the parts that the part `name` refers to ("": the whole package): by the reference's id, the kind
        (`slide`, `worksheet`) and the name of the other part, which may be missing from the file.

        Empty where there are no references; those to addresses outside the file are left out. Blocks.

        Raises:
            ParsingError: `document_malformed` or `document_too_large`.
        """
        folder, base = posixpath.split(name)
        relations_name = f"{folder}/_rels/{base}.rels".lstrip("/")
        relations: dict[str, tuple[str, str]] = {}

        def start(tag: str, attributes: Mapping[str, str]) -> None:
            if tag == "Relationship" and attributes.get("TargetMode") != "External":
                target = resolve_name(folder, attributes.get("Target", ""))
                relations[attributes.get("Id", "")] = (attributes.get("Type", "").rpartition("/")[2], target)

        if relations_name in self.names:
            self.parse_part(relations_name, start)
        return relations

    def _read_blocks(self, name: str, take: Callable[[bytes], object]) -> None:
        if name not in self.names:
            raise ParsingError("document_malformed", f"the file lacks its part {name!r:.200}")
        try:
            with self._archive.open(name) as part:
                while block := part.read(_BLOCK_BYTES):
                    self._left -= len(block)
                    if self._left < 0:
                        raise ParsingError("document_too_large", "the file expands to more than is allowed")
                    take(block)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise ParsingError("document_malformed", f"{name!r:.200} in the file is damaged ({error})") from error


def resolve_name(folder: str, target: str) -> str:
    """Return the name in the package of the part that `target`, a URL, refers to in a part of the folder `folder`.

    A URL that begins with `/` is relative to the package, another to the folder. The part may not exist: an empty
    target gives the folder, and one that leads out of the package a name with `..`, which no part has.
    """
    target = unquote(target.partition("#")[0])
    joined = target[1:] if target.startswith("/") else posixpath.join(folder, target)
    return posixpath.normpath(joined)


def _refuse_entity(*_: object) -> None:
    raise ParsingError("document_malformed", "the file declares XML entities, which no such document needs")


def _get_local_name(name: str) -> str:
    return name.rpartition(" ")[2]


def _get_attributes(pairs: list[str]) -> dict[str, str]:
    return {_get_local_name(pairs[at]): pairs[at + 1] for at in range(0, len(pairs), 2)}
