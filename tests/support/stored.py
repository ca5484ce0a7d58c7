"""Responses to be stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assistant.storage.database import StateDatabase
from assistant.storage.records import StoredResponse
from gateway.exchange.plain_responses import TOKEN_LENGTH, id_of

HOUR = 3600.0
MIB = 1024 * 1024


@dataclass
class Clock:
    """Time that moves when it is told to."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def token(name: str) -> str:
    """What the ids of the response called `name` are made with."""
    return name.encode().hex().rjust(TOKEN_LENGTH, "0")


def rid(name: str) -> str:
    return id_of(token(name))


def iid(name: str, side: Literal["in", "out"]) -> str:
    """The id of its one input item, or of its one output item."""
    return f"msg_{token(name)}{0 if side == 'in' else 1:04x}"


def message(item_id: str, text: str, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"id": item_id, "type": "message", "role": role, "status": "completed", "content": content}


def response(name: str, previous: str | None = None, status: str = "completed", answer: str = "yes") -> dict[str, Any]:
    """A response object whose fields tell it from others."""
    over = status in ("completed", "incomplete")
    return {
        "id": rid(name),
        "object": "response",
        "created_at": 7,
        "status": status,
        "previous_response_id": None if previous is None else rid(previous),
        "error": None,
        "output": [message(iid(name, "out"), answer, "assistant")] if over else [],
        "metadata": {"name": name},
    }


def stored(
    name: str,
    previous: str | None = None,
    *,
    tenant: str = "t",
    status: str = "completed",
    question: str = "really?",
    answer: str = "yes",
) -> StoredResponse:
    request = [message(iid(name, "in"), question)]
    return StoredResponse.of(tenant, "m", response(name, previous, status, answer), request)


def opened(folder: Path, clock: Clock, *, max_mib: float = 64, retention_h: float = 1) -> StateDatabase:
    return StateDatabase(
        folder / "responses.db", max_bytes=int(max_mib * MIB), retention_s=retention_h * HOUR, clock=clock
    )
