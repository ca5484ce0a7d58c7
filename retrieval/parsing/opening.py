"""The parser that the settings ask for."""

from __future__ import annotations

from retrieval.parsing.base import MIB, ParsingLimits
from retrieval.parsing.pool import ParserPool
from retrieval.settings import RetrievalSettings


def open_parser(settings: RetrievalSettings) -> ParserPool:
    """Return a pool of parsing processes with the limits of the settings. The pool starts a process with the first
    file. The caller closes the pool."""
    limits = ParsingLimits(
        max_file_bytes=settings.retrieval_max_file_mib * MIB,
        timeout_s=settings.retrieval_parse_timeout_s,
        memory_bytes=settings.retrieval_parse_memory_mib * MIB,
    )
    return ParserPool(limits, processes=settings.retrieval_parsers)
