"""The program that builds the indexes of one shard that nobody else has open, at the lowest priority:
`python -m retrieval.vector_store.edge.optimizer FOLDER PARENT`. Exits with 0 when the shard is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from retrieval.vector_store.edge.frames import die_with_parent
from retrieval.vector_store.edge.shard_process import Shard
from retrieval.vector_store.tokenizer import Bm25Options


def main() -> None:
    """Optimize the shard that the command line names (`FOLDER PARENT`), at the lowest priority, then flush and close
    it. Exits with code 1 after an error, or if the process PARENT has ended before; if PARENT ends later, the program
    is killed."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    os.nice(19)
    shard = Shard.load(folder, Bm25Options())  # whichever: no text is written here
    shard.optimize()
    shard.flush()
    shard.close()


if __name__ == "__main__":
    main()
