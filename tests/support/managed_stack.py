"""A Roundhouse with everything that the page manages: models, downloads from a fake hub, documents."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.fake_hub.repositories import HubRepository, make_gguf
from tests.support.fake_hub.server import FakeHub
from tests.support.page_browser import require_page
from tests.support.roundhouse_stack import RoundhouseStack, serving
from tests.support.scripted_model_file import make_scripted_model
from tests.support.wait import until

REPOSITORY = "clock/work-GGUF"
FILE = "work-Q4_K_M.gguf"
LARGE = "clock/large-GGUF"
LARGE_FILE = "large-Q4_K_M.gguf"
CITING = ("Coal is stored beside the shed ", "[1]", ".")
"""What the model `citing` says, whatever it is asked."""
MODELS: Mapping[str, Any] = {
    "clockwork": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096},
    "resting": {"model_path": "clockwork.gguf", "enabled": False},
    "broken": {"model_path": "missing.gguf"},
    "citing": {"model_path": "citing.gguf", "llama_server_n_ctx": 4096, "enabled": False},
}
"""One model that serves, one that nobody wants, one whose file is missing, and one that cites."""


def make_hub(clockwork: Path) -> FakeHub:
    """A hub with `REPOSITORY`, which has the file `clockwork`, and `LARGE`, whose weights are zeros."""
    return FakeHub(
        [
            HubRepository(REPOSITORY, {FILE: clockwork, "README.md": b"hi"}),
            HubRepository(LARGE, {LARGE_FILE: make_gguf(width=1024)}),
        ]
    )


@contextlib.contextmanager
def managed_stack(root: Path, clockwork: Path, hub: FakeHub) -> Iterator[RoundhouseStack]:
    """Controller, gateway, retrieval and transfers as processes. Downloads come from the hub, which runs."""
    require_page()
    stack = RoundhouseStack(root, "process", _settings(root, hub))
    stack.settings["ROUNDHOUSE_GATEWAY_URL"] = stack.url
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    make_scripted_model(stack.models / "citing.gguf", CITING)
    stack.declare(MODELS)

    async def retrieval_answers() -> bool:
        return (await stack.request("GET", "/v1/documents")).status == 200

    stack.start("transfers")
    stack.start("retrieval")
    with serving(stack, "clockwork"):
        asyncio.run(until("retrieval answers", retrieval_answers))
        yield stack


def _settings(root: Path, hub: FakeHub) -> dict[str, str]:
    return {
        "ROUNDHOUSE_MDNS": "off",
        "ROUNDHOUSE_RESPONSES_RETENTION_H": "36",
        "ROUNDHOUSE_RETRIEVAL_LISTEN": f"unix:{root}/r.sock",
        "ROUNDHOUSE_RETRIEVAL_URL": f"unix:{root}/r.sock",
        "ROUNDHOUSE_TRANSFERS_LISTEN": f"unix:{root}/t.sock",
        "ROUNDHOUSE_TRANSFERS_URL": f"unix:{root}/t.sock",
        "ROUNDHOUSE_HUB_ENDPOINT": hub.endpoint,
        "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1",
    }


KEYS: Mapping[str, list[str]] = {"reader": ["inference"], "boss": ["inference", "admin"]}
"""Keys of `keyed_stack`, with their scopes."""


def secret_of(key: str) -> str:
    return f"rh-secret-of-{key}"


@contextlib.contextmanager
def keyed_stack(root: Path, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, with the model `clockwork`, which takes requests with `KEYS` alone."""
    require_page()
    stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_MDNS": "off"})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare({"clockwork": MODELS["clockwork"]})
    keys = {
        name: {"sha256": sha256(secret_of(name).encode()).hexdigest(), "scopes": scopes}
        for name, scopes in KEYS.items()
    }

    async def is_closed() -> bool:
        return (await stack.request("GET", "/v1/models")).status == 401

    with serving(stack, "clockwork"):
        # The keys come last: without one, the stack's own questions would be refused.
        stack.write("keys.yaml", {"keys": keys})
        asyncio.run(until("the keys are in force", is_closed))
        yield stack
