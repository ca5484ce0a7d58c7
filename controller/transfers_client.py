"""Questions to `transfers`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final, Self, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from common.internal_tokens import TRANSFERS_TOKEN
from common.program_client import ProgramAddress, ProgramAnswer, ProgramClient, ProgramGoneError
from common.sse import SseReader
from contract.downloads import (
    Download,
    DownloadList,
    DownloadOrder,
    FoundModels,
    Inspection,
    RangeOrder,
    Removal,
    RemovalOrder,
    SearchOrder,
    SharePlace,
)
from contract.errors import ERROR_CODES, ErrorEnvelope, RoundhouseError

CONNECT_S: Final = 2.0
QUICK_S: Final = 30.0
"""Seconds for an answer that needs the disk at most; a cancellation waits for threads."""
SOURCE_S: Final = 90.0
"""Seconds for an answer that needs the source; `transfers` gives up after a minute."""
REMOVAL_S: Final = 600.0
"""Seconds for a removal, for which files may be read in full."""
SILENCE_S: Final = 60.0
"""Seconds without anything, not even a comment, after which a stream of events counts as broken."""
_PASSED_ON: Final = frozenset(
    {"schema_violation", "internal_error", *(code for code, entry in ERROR_CODES.items() if entry.group == "downloads")}
)
"""Codes of errors that are passed on as they are. Others are about the controller, not about whoever asked it."""
_LONGEST_EVENT: Final = 2**24

Answer = TypeVar("Answer", bound=BaseModel)


class TransfersClient:
    """Asks the program that downloads, over HTTP. An async context manager: requests work only while it is entered.
    Every method raises RoundhouseError: `transfers_unreachable` where the program does not answer in time, or its
    answer cannot be read; and the errors that it answers with (`source_…`, `models_…`, `download_not_found`,
    `reference_invalid`). After `transfers_unreachable`, the program may have done what was asked."""

    def __init__(self, address: ProgramAddress) -> None:
        self._client = ProgramClient(address, CONNECT_S, program="transfers")

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def inspect(self, order: DownloadOrder) -> Inspection:
        """Return what a reference resolves to now. Raises RoundhouseError: `transfers_unreachable` if `transfers` does
        not answer within 90 s, or its answer cannot be read; or an error that it answers with (`reference_invalid`,
        `source_…`, `models_…`)."""
        return _parse(Inspection, (await self._exchange("POST", "/inspect", order, SOURCE_S))[1])

    async def search(self, order: SearchOrder) -> FoundModels:
        """Return models of the hub whose names have the order's words. Raises RoundhouseError: `transfers_unreachable`
        if `transfers` does not answer within 90 s, or its answer cannot be read; or an error that it answers with
        (`source_…`)."""
        return _parse(FoundModels, (await self._exchange("POST", "/search", order, SOURCE_S))[1])

    async def read_range(self, order: RangeOrder) -> bytes:
        """Return the bytes of a file at its source that `order` names; fewer where the file ends. Raises
        RoundhouseError: `transfers_unreachable` if `transfers` does not answer within 90 s, or its answer cannot be
        read; or an error that it answers with (`reference_invalid`, `source_…`)."""
        return (await self._exchange("POST", "/ranges", order, SOURCE_S))[1]

    async def order_download(self, order: DownloadOrder) -> tuple[Download, bool]:
        """Begin a download. Return it, and whether it is a new run; a download that is under way is returned as it is.
        Raises RoundhouseError: `transfers_unreachable` if `transfers` does not answer within 30 s, or its answer cannot
        be read, after which the download may have begun; or an error that it answers with (`reference_invalid`,
        `source_…`, `models_…`)."""
        status, content = await self._exchange("POST", "/downloads", order)
        return _parse(Download, content), status == 202

    async def get_share_place(self) -> SharePlace:
        """Return where the models folder is served to other hosts. Raises RoundhouseError: `transfers_unreachable` if
        `transfers` does not answer within 30 s, or its answer cannot be read; or an error that it answers with."""
        return _parse(SharePlace, (await self._exchange("GET", "/share"))[1])

    async def list_downloads(self) -> list[Download]:
        """Return all downloads, newest first. Raises RoundhouseError: `transfers_unreachable` if `transfers` does not
        answer within 30 s, or its answer cannot be read; or an error that it answers with."""
        return _parse(DownloadList, (await self._exchange("GET", "/downloads"))[1]).downloads

    async def get_download(self, download: str) -> Download:
        """Return one download, by its id. Raises RoundhouseError: `download_not_found`; `transfers_unreachable` if
        `transfers` does not answer within 30 s, or its answer cannot be read; or an error that it answers with."""
        return _parse(Download, (await self._exchange("GET", _path(download)))[1])

    async def cancel_download(self, download: str) -> Download:
        """End a download, by its id, and return it; one that has ended is returned as it is. Raises RoundhouseError:
        `download_not_found`; `transfers_unreachable` if `transfers` does not answer within 30 s, or its answer cannot
        be read, after which the download may have ended; or an error that it answers with."""
        return _parse(Download, (await self._exchange("DELETE", _path(download)))[1])

    async def remove_files(self, order: RemovalOrder) -> Removal:
        """Remove what a download put into the models folder, as `order` says. May take minutes. Raises RoundhouseError:
        `transfers_unreachable` if `transfers` does not answer within 10 minutes, or its answer cannot be read, after
        which files may be gone; or an error that it answers with (`models_…`, `download_not_found`)."""
        return _parse(Removal, (await self._exchange("DELETE", "/files", order, REMOVAL_S))[1])

    async def follow_downloads(self) -> AsyncGenerator[Download, None]:
        """Yield every download once, and then each one whenever it changes, until `transfers` ends. Close the generator
        (`aclosing`). Raises RoundhouseError: `transfers_unreachable` if `transfers` does not answer, falls silent for
        60 s, or its answer cannot be read; or an error that it answers with."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        try:
            async with await self._client.send_request("GET", "/downloads/events", {}, timeout=timeout) as answer:
                if answer.status != 200:
                    raise _read_error(answer, await answer.read_body())
                events = _read_events(answer)
                async with aclosing(events):
                    async for data in events:
                        yield _parse(Download, data)
        except (ProgramGoneError, TimeoutError) as error:
            raise _unreachable(str(error) or "it fell silent") from None

    async def _exchange(
        self, method: str, path: str, order: BaseModel | None = None, within_s: float = QUICK_S
    ) -> tuple[int, bytes]:
        body, headers = b"", dict[str, str]()
        if order is not None:
            body, headers = (
                json.dumps(order.model_dump(exclude_none=True)).encode(),
                {"content-type": "application/json"},
            )
        timeout = aiohttp.ClientTimeout(total=within_s, connect=CONNECT_S, sock_connect=CONNECT_S)
        try:
            async with await self._client.send_request(method, path, headers, body, timeout=timeout) as answer:
                content = await answer.read_body()
        except TimeoutError:
            raise _unreachable(f"no answer within {within_s:g} s") from None
        except ProgramGoneError as error:
            raise _unreachable(str(error)) from None
        if answer.status >= 400:
            raise _read_error(answer, content)
        return answer.status, content


def transfers_address(url: str, token_file: Path | None) -> ProgramAddress:
    """Return the address at which `transfers` is asked, with the file of its token, by the settings. Raises ValueError
    if `url` is no address of a program (see `ProgramAddress.parse`)."""
    return ProgramAddress.parse(url, token_file, TRANSFERS_TOKEN.header)


def _path(download: str) -> str:
    if not (download.isascii() and download.replace("_", "").isalnum()):
        raise RoundhouseError("download_not_found", f"There is no download {download!r:.60}.")
    return f"/downloads/{download}"


def _parse(kind: type[Answer], content: bytes | str) -> Answer:
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise _unreachable("what answers is no `transfers` of this version") from None


async def _read_events(answer: ProgramAnswer) -> AsyncGenerator[str, None]:
    """Yield the data of each event."""
    reader = SseReader()
    while part := await answer.read_part():
        events = reader.feed_bytes(part)
        if reader.pending_bytes > _LONGEST_EVENT:
            raise _unreachable("it sent an event that is too long")
        for event in events:
            yield event.data


def _read_error(answer: ProgramAnswer, content: bytes) -> RoundhouseError:
    try:
        error = ErrorEnvelope.model_validate_json(content).error
    except ValidationError:
        return _unreachable(f"it answers with status {answer.status}")
    if error.code not in _PASSED_ON:
        return _unreachable(f"it refuses the controller: {error.message}")
    asked = answer.headers.get("retry-after", "")
    retry_after_s = float(asked) if asked.isascii() and asked.isdigit() else None
    return RoundhouseError(error.code, error.message, param=error.param, retry_after_s=retry_after_s)


def _unreachable(reason: str) -> RoundhouseError:
    return RoundhouseError("transfers_unreachable", f"Models cannot be downloaded now: {reason}.")
