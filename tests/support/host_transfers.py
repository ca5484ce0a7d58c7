"""The `transfers` of hosts that fetch from each other: real programs, each with a models folder of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.program_client import ProgramAddress
from contract.downloads import FINAL_STATES, CopyOrder, Download
from controller.transfers_client import TransfersClient
from tests.support.ports import free_port
from tests.support.wait import until

TOKEN = "0123456789abcdef" * 4
"""The installation's."""


@dataclass
class HostProgram:
    """One host's transfers, as a process."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> TransfersClient:
        return TransfersClient(ProgramAddress.parse(f"unix:{self.folder / 'transfers.sock'}"))

    def start(self, **settings: str) -> None:
        self.models.mkdir(parents=True, exist_ok=True)
        token = self.folder / "token"
        token.write_text(TOKEN)
        told = {
            "MODELS": str(self.models),
            "TRANSFERS_LISTEN": f"unix:{self.folder / 'transfers.sock'}",
            "TRANSFERS_SHARE_LISTEN": f"127.0.0.1:{self.port}",
            "TRANSFERS_SHARE_TOKEN_FILE": str(token),
            "TRANSFERS_KEEP_FREE_GB": "0",
            **settings,
        }
        env = {key: value for key, value in os.environ.items() if not key.startswith("ROUNDHOUSE_")}
        env |= {f"ROUNDHOUSE_{key}": value for key, value in told.items()}
        self.process = subprocess.Popen([sys.executable, "-m", "transfers"], env=env)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def fetch(self, path: str, *peers: HostProgram) -> Download:
        """Fetch, and return the download as it has ended."""
        async with self.client as client:

            async def order() -> Any:
                with contextlib.suppress(Exception):
                    return await client.order_download(
                        CopyOrder(reference=f"head:{path}", peers=[each.url for each in peers])
                    )

            begun, _ = await until("the program listens", order)

            async def look() -> Download | None:
                found = await client.get_download(begun.id)
                return found if found.state in FINAL_STATES else None

            ended: Download = await until(f"the end of the fetch of {path}", look)
            return ended


@contextlib.contextmanager
def running(tmp_path: Path, *names: str) -> Iterator[list[HostProgram]]:
    hosts = [HostProgram(tmp_path / name, free_port()) for name in names]
    try:
        for each in hosts:
            each.start()
        yield hosts
    finally:
        for each in hosts:
            if each.process is not None:
                each.process.kill()
                each.process.wait()
