"""`make bench`: every benchmark, side by side in one run. `ARGS="plan gateway --json"` picks and shapes."""

from __future__ import annotations

import argparse
from importlib import import_module

from tests.bench.report import show

BENCHES = ("plan", "reaction", "size", "gateway", "admin")


def main() -> None:
    """Run what was asked for, one after the other: two at once would measure each other."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=")
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"any of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    arguments = parser.parse_args()
    unknown = set(arguments.benches) - set(BENCHES)
    if unknown:
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    for name in arguments.benches or BENCHES:
        show(name, import_module(f"tests.bench.bench_{name}").run(), as_json=arguments.json)


if __name__ == "__main__":
    main()
