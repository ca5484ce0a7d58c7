"""Stands for the bridge to Ray: `fake_ray_bridge.py MODE FOLDER FD`. Appends a line to FOLDER/starts at each start.

`mute` says nothing, `fails` that Ray cannot be used. `hosts` knows the hosts `a` and `r`, which is refused, and answers
requests with their keys; one with the method `die` ends it, if it comes for the first time. What is withdrawn it
writes to FOLDER/withdrawn.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any


def pack_frame(frame: dict[str, Any]) -> bytes:
    """As the bridge does, whose imports would take their time."""
    content = json.dumps(frame).encode()
    return struct.pack("!I", len(content)) + content


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next frame; None: the carrier has ended."""
    try:
        return json.loads(await reader.readexactly(struct.unpack("!I", await reader.readexactly(4))[0]))
    except (OSError, asyncio.IncompleteReadError):
        return None


async def serve(mode: str, folder: Path, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=channel)

    def send(frame: dict[str, Any]) -> None:
        writer.write(pack_frame(frame))

    with (folder / "starts").open("a") as starts:
        starts.write("start\n")
    await read_frame(reader)
    if mode == "mute":
        await asyncio.Event().wait()
    if mode == "fails":
        send({"kind": "failed", "reason": "its version is another one"})
        await writer.drain()
        return
    send({"kind": "beat", "is_connected": True})
    about = {"address": "10.0.0.1", "labels": {"disk": "fast"}, "versions": {"ray": "2"}, "node": "n"}
    send({"kind": "host", "name": "a", "refusal": None, **about})
    send({"kind": "host", "name": "r", "refusal": "its state folder is another's", **about})
    send({"kind": "heard", "name": "a", "is_changed": True})
    send({"kind": "seen"})
    while (request := await read_frame(reader)) is not None:
        if "withdraw" in request:
            (folder / "withdrawn").write_text(str(request["withdraw"]))
            continue
        if request["method"] == "die" and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(1)
        if request["method"] == "wait":
            continue
        send({"kind": "answer", "id": request["id"], "payload": request["key"]})


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))))
