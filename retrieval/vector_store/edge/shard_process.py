"""The program that has one shard open: `python -m retrieval.vector_store.edge.shard_process FOLDER PARENT [CREATE]`.

It answers requests on stdin (see `frames`) with one message each on stdout, in their order: `{"result": ...}`, or
`{"error": TEXT}`. Its first message says that the shard is open, or why it is not. CREATE makes the shard: the
dimension of its dense vectors, or `none`. It ends when stdin does, or when the process PARENT ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from retrieval.vector_store.edge.frames import decode_vectors, encode_frame, read_frame
from retrieval.vector_store.edge.process_end import die_with_parent
from retrieval.vector_store.edge.shard import Shard

PANICKED: Final = 70
"""Exit code after a panic of Qdrant Edge: its locks may be held by nobody, so nothing more is asked of it."""


def main() -> None:
    """Open the shard, and serve it."""
    folder, parent, create = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    die_with_parent(parent)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        shard = _open_shard(folder, create[0] if create else None)
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        _send(answers, {"error": _describe(error)})
        sys.exit(1)
    _send(answers, {"result": "open"})
    serve_requests(shard, requests, answers)
    shard.flush()
    shard.close()


def serve_requests(shard: Shard, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until their stream ends."""
    while frame := read_frame(requests):
        try:
            _send(answers, {"result": answer_request(shard, *frame)})
        except Exception as error:  # noqa: BLE001 - Qdrant Edge raises Exception itself
            _send(answers, {"error": _describe(error)})
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception
            _send(answers, {"error": _describe(error)})
            sys.exit(PANICKED)


def answer_request(shard: Shard, request: Mapping[str, Any], data: bytes) -> Any:
    """Do what a request asks, and return its result."""
    match request["op"]:
        case "search_dense":
            vector = decode_vectors(data, request["dimension"])[0]
            return shard.search_dense(vector, request["where"], request["limit"])
        case "search_sparse":
            return shard.search_sparse(request["text"], request["where"], request["corpus"], request["limit"])
        case "upsert":
            dimension = request["dimension"]
            shard.upsert(request["points"], None if dimension is None else decode_vectors(data, dimension))
        case "delete":
            return shard.delete(request["where"])
        case "count":
            return shard.count(request["where"])
        case "flush":
            shard.flush()
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")
    return None


def _open_shard(folder: Path, create: str | None) -> Shard:
    if create is None:
        return Shard.load(folder)
    return Shard.create(folder, None if create == "none" else int(create))


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(encode_frame(message))
    stream.flush()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
