"""PDFs by hooks: for a model that takes no files, the text of each PDF replaces the PDF in the request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks, Pause
from gateway.protocols.api_matrix import serving_option
from gateway.protocols.common.file_parts import FilePart, find_files, holds_files


def _read_files(exchange: Exchange, route: ModelRoute) -> Pause | None:
    request = exchange.request
    if not holds_files(request.outline_fields) or serving_option(exchange.api.path, request, route).takes_files(route):
        return None
    pdfs, has_changed = find_files(request.fields)
    if has_changed or request.large_body is not None:  # base64 is decoded whole
        exchange.replace_request(request.with_fields(request.fields))
    if not pdfs:
        return None
    task = asyncio.get_running_loop().create_task(exchange.services.documents.read_texts(pdfs))
    exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_reading, task),)))
    return Pause(task, partial(_put_texts, exchange, pdfs))


def _put_texts(exchange: Exchange, pdfs: Sequence[FilePart], texts: Sequence[str]) -> None:
    for part, text in zip(pdfs, texts, strict=True):
        part.put_text(text)
    exchange.replace_request(exchange.request.with_fields(exchange.request.fields))


def _stop_reading(task: asyncio.Task[list[str]], _: Exchange) -> None:
    task.cancel()


FILE_HOOKS: Final = ExchangeHooks(on_request=(_read_files,))
"""The hooks of requests for every API."""
