"""`make bench`: every benchmark, side by side in one run. `ARGS="plan gateway --json"` picks and shapes."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module

from tests.bench import baseline
from tests.bench.report import Figure, show
from tests.bench.targets import CACHE

BENCHES = (
    "plan",
    "reaction",
    "size",
    "gateway",
    "pace",
    "relay",
    "features",
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
    "tools",
)
WITH_OPTIONS = (
    "gateway",
    "pace",
    "relay",
    "features",
    "engine",
    "tokens",
    "streams",
    "affinity",
    "rag",
    "health",
    "page",
    "tools",
)
"""Take options of their own, after their name: `ARGS="gateway --rounds 2 --without litellm"`."""
WITH_BASELINE = ("plan", "swap")
"""Are run by the commit of `baseline` as well, before and after, and compared with its figures of the same names."""


def compare(bench: str, run: Callable[[], Iterable[Figure]]) -> list[Figure]:
    """Run it, and the same of the commit of long ago before and after; return its figures, and ratios to the others."""
    before = _measure_baseline(bench)
    figures = list(run())
    both = [before, _measure_baseline(bench)]
    ratios = []
    for figure in figures:
        name = f"{figure.of}: {figure.name}".removeprefix(": ")
        theirs = [found[name] for found in both if found.get(name)]
        if theirs and figure.unit in ("us", "ms", "s"):
            ratios.append(Figure(f"{name}, over {baseline.COMMIT}", figure.value / statistics.mean(theirs), "x"))
    return figures + ratios


def _measure_baseline(bench: str) -> dict[str, float]:
    try:
        return baseline.measure(bench, CACHE)
    except baseline.NoBaselineError as error:
        print(f"without {baseline.COMMIT}: {error}", file=sys.stderr)
        return {}


def main() -> None:
    """Run what was asked for, one after the other: two at once would measure each other."""
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=",
        epilog="Of gateway alone: --rounds N, --without nginx|litellm, --profile. "
        "Of pace alone: --rounds N, --without NAME. Of relay alone: --rounds N. Of features alone: --rounds N. "
        "Of engine alone: --rounds N, --without llama-server|vllm|fake, --only WORDS, --pinned. "
        "Of tokens alone: --rounds N. Of streams alone: --rounds N, --against CHECKOUT. Of affinity alone: --rounds N. "
        "Of rag alone: --only PART, --chunks N, --rounds N, --without SIDE, --quick. Of health alone: --seconds N. "
        "Of page alone: --messages N, --top. Of tools alone: --rounds N, --seconds N, --each.",
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
        measure = partial(run, options) if name in WITH_OPTIONS else run
        show(name, compare(name, measure) if name in WITH_BASELINE else measure(), as_json=arguments.json)


if __name__ == "__main__":
    main()
