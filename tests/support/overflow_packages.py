"""What packages of others raise where a prompt is too long, of a real engine behind a gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.fakes.gateway_harness import gateway_harness
from tests.support import llama_servers, overflow_probe
from tests.support.compaction import TOKEN, route_to
from tests.support.foreign_clients import ForeignClients
from worker.clockwork import CONTEXT, SPECIAL, make_model

MODEL: Final = "plain"
EXPECTED: Final = {"LangChain": "ContextOverflowError", "litellm": "ContextWindowExceededError"}
"""By the first word of a way of asking."""
REFUSERS: Final = {"the engine": 2 * CONTEXT, "the gateway": 2 * CONTEXT * max(map(len, SPECIAL))}
"""Who refuses prompts of so many letters."""


async def probe_packages(clients: ForeignClients, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Who refuses, to the way of asking, to the names of the exception's classes."""
    folder.mkdir()
    make_model(folder / "plain.gguf")
    with llama_servers.started("binary", folder, MODEL, folder / "plain.gguf", token=TOKEN) as worker:
        worker.ready()
        async with gateway_harness() as gateway:
            made = route_to(MODEL, f"http://127.0.0.1:{worker.port}", CONTEXT)
            await gateway.publish(made.model_copy(update={"longest_token": max(map(len, SPECIAL))}))
            return {who: await _probe(clients, gateway.url, letters) for who, letters in REFUSERS.items()}


async def _probe(clients: ForeignClients, url: str, letters: int) -> Mapping[str, str]:
    env = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(
        str(clients.python),
        str(overflow_probe.__file__),
        *(url, MODEL, str(letters)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env,
    )
    output, _ = await process.communicate()
    raised: dict[str, str] = json.loads(output.splitlines()[-1])
    return raised
