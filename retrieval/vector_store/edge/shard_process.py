"""The program that has one shard open:
`python -m retrieval.vector_store.edge.shard_process FOLDER PARENT BM25 [CREATE]`.

It answers requests on stdin (see `frames`) with one message each on stdout, in their order: `{"result": ...}`, or
`{"error": TEXT}`. Its first message says that the shard is open, or why it is not. BM25 is the JSON of the shard's
options. CREATE makes the shard: the dimension of its dense vectors, or `none`. It ends when stdin does, or when the
process PARENT ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from common.processes import return_freed_memory
from retrieval.vector_store.bm25_options import Bm25Options, load_options
from retrieval.vector_store.edge.frames import decode_vectors, encode_frame, encode_vector_text, read_frame
from retrieval.vector_store.edge.process_end import die_with_parent
from retrieval.vector_store.edge.shard import Shard

PANICKED: Final = 70
"""Exit code after a panic of Qdrant Edge: its locks may be held by nobody, so nothing more is asked of it."""


def main() -> None:
    """Open the shard that the command line names (`FOLDER PARENT BM25 [CREATE]`, see the module), and answer requests
    on stdin with messages on stdout until stdin ends; then flush and close the shard.

    Exits with code 1 where the process PARENT has ended already, or the shard cannot be opened, then after a message
    with the error, and with `PANICKED` after a panic of Qdrant Edge.
    """
    folder, parent, bm25, create = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    return_freed_memory()
    die_with_parent(parent)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        shard = _open_shard(folder, load_options(bm25), create[0] if create else None)
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        _send(answers, {"error": _describe(error)})
        sys.exit(1)
    _send(answers, {"result": "open"})
    serve_requests(shard, requests, answers)
    shard.flush()
    shard.close()


def serve_requests(shard: Shard, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests (frames, see `frames.read_frame`), one at a time and in their order, until `requests` ends: each
    with a frame `{"result": ...}` in `answers`, as `answer_request` returns it.

    A request that fails is answered with `{"error": TEXT}`, and the next one is served. After a panic of Qdrant Edge
    the error is sent, and SystemExit is raised with the code `PANICKED`. Raises EOFError where `requests` ends in the
    middle of a frame.
    """
    while frame := read_frame(requests):
        try:
            _send(answers, {"result": answer_request(shard, *frame)})
        except Exception as error:  # noqa: BLE001 - Qdrant Edge raises Exception itself
            _send(answers, {"error": _describe(error)})
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception
            _send(answers, {"error": _describe(error)})
            sys.exit(PANICKED)


def answer_request(shard: Shard, request: Mapping[str, Any], data: bytes) -> Any:
    """Do what a request asks, and return its result, which JSON can hold.

    `request["op"]` is `search_dense`, `search_sparse`, `upsert`, `delete`, `count` or `flush`, each a method of
    `Shard`, or `vectors` for `Shard.read_vectors`; the other keys are that method's parameters. Dense vectors are in
    `data` instead, with `request["dimension"]` (None for an `upsert` without them). The result is a list of (version,
    ordinal, score) for the two searches, a number for `delete` and `count`, a dictionary of ids and vectors as
    `encode_vector_text` makes them for `vectors`, and None for `upsert` and `flush`. Raises ValueError for an unknown
    `op`, KeyError for a missing key, and what Qdrant Edge raises.
    """
    match request["op"]:
        case "search_dense":
            vector = decode_vectors(data, request["dimension"])[0]
            return shard.search_dense(vector, request["where"], request["limit"])
        case "search_sparse":
            return shard.search_sparse(request["text"], request["where"], request["corpus"], request["limit"])
        case "upsert":
            dimension = request["dimension"]
            shard.upsert(request["points"], [] if dimension is None else decode_vectors(data, dimension))
        case "delete":
            return shard.delete(request["where"])
        case "vectors":
            return {id_: encode_vector_text(vector) for id_, vector in shard.read_vectors(request["ids"]).items()}
        case "count":
            return shard.count(request["where"])
        case "flush":
            shard.flush()
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")
    return None


def _open_shard(folder: Path, bm25: Bm25Options, create: str | None) -> Shard:
    if create is None:
        return Shard.load(folder, bm25)
    return Shard.create(folder, None if create == "none" else int(create), bm25)


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(encode_frame(message))
    stream.flush()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
