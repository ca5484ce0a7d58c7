"""A Roundhouse whose models are the demo model on real llama-servers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.page_browser import require_page
from tests.support.roundhouse_stack import RoundhouseStack, serving

CLOCKWORK: Mapping[str, Any] = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096}


@contextlib.contextmanager
def clockwork_stack(
    root: Path, clockwork: Path, models: Mapping[str, Any], tools: str | None = None
) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, once the model named `clockwork` of `models` is loaded. `tools`: a further
    desired-state file."""
    require_page()
    stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_MDNS": "off"})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare(models)
    if tools is not None:
        (stack.desired / "tools.yaml").write_text(tools)

    with serving(stack, "clockwork"):
        yield stack
