"""`python -m tests.support.fake_hub`: the fake hub by hand, until it is interrupted."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from tests.support.fake_hub.repositories import make_repositories, read_folder
from tests.support.fake_hub.server import FakeHub


def main() -> int:
    """Serve, and print the address."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fake_hub", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of the hub; 0: any (default)")
    parser.add_argument("--folder", type=Path, help="serves USER/REPO/FILES below it, besides the generated ones")
    parser.add_argument("--token", action="append", default=[], help="a token that is known; may be repeated")
    parser.add_argument("--bytes-per-s", type=float, help="speed of each answer")
    options = parser.parse_args()
    repositories = [*make_repositories(), *(read_folder(options.folder) if options.folder else ())]
    hub = FakeHub(
        repositories,
        tokens=options.token or ("hf_tester",),
        bytes_per_s=options.bytes_per_s,
        host=options.host,
        port=options.port,
    )
    with hub:
        print(f"fake hub: HF_ENDPOINT={hub.endpoint}", flush=True)
        for repository in hub.repositories.values():
            print(f"  {repository.name}: {', '.join(repository.commits[repository.head])}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
