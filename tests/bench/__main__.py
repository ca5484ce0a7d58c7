"""`make bench`: every benchmark, side by side in one run. `ARGS="plan gateway --json"` picks and shapes."""

from __future__ import annotations

import argparse
from importlib import import_module

from tests.bench.report import show

BENCHES = (
    "plan",
    "reaction",
    "size",
    "gateway",
    "translation",
    "admin",
    "swap",
    "engine",
    "tokens",
    "streams",
    "affinity",
    "rag",
    "health",
    "first_paint",
    "page",
)
WITH_OPTIONS = ("gateway", "engine", "tokens", "streams", "affinity", "rag", "health", "page")
"""Take options of their own, after their name: `ARGS="gateway --rounds 2 --without litellm"`."""


def main() -> None:
    """Run what was asked for, one after the other: two at once would measure each other."""
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=",
        epilog="Of gateway alone: --rounds N, --without nginx|litellm, --profile. "
        "Of engine alone: --rounds N, --without llama-server|vllm|fake, --only WORDS. Of tokens alone: --rounds N. "
        "Of streams alone: --rounds N, --against CHECKOUT. Of affinity alone: --rounds N. "
        "Of rag alone: --only PART, --chunks N, --rounds N, --without SIDE, --quick. Of health alone: --seconds N. "
        "Of page alone: --messages N, --top.",
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"any of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    arguments, options = parser.parse_known_args()
    unknown = set(arguments.benches) - set(BENCHES)
    if unknown:
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    takers = [name for name in arguments.benches if name in WITH_OPTIONS]
    if options and len(takers) != 1:
        parser.error(f"unknown here: {' '.join(options)}; one of {' and '.join(WITH_OPTIONS)} takes options")
    for name in arguments.benches or BENCHES:
        run = import_module(f"tests.bench.bench_{name}").run
        show(name, run(options) if name in WITH_OPTIONS else run(), as_json=arguments.json)


if __name__ == "__main__":
    main()
