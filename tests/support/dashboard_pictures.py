"""Draws docs/dashboards: `python -m tests.support.dashboard_pictures`, which `make pictures` runs.

Starts a site under load (tests/support/monitored_site.py) and a real Prometheus, waits, asks Prometheus what each
panel asks, and draws the answers. `--seconds` is how long the site is watched, 180 by default.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grafana.pictures import Series, Span, draw_dashboard, read_matrix
from tests.support.monitored_site import monitored_site, under_load
from tests.support.prometheus_server import (
    DASHBOARDS,
    VARIABLES,
    PrometheusServer,
    fill_in,
    prometheus_server,
    read_dashboard,
)

PICTURES: Final = Path(__file__).parents[2] / "docs" / "dashboards"
EVERY: Final = "1s"
RATE_INTERVAL: Final = "10s"


async def ask_panels(prometheus: PrometheusServer, board: Mapping[str, Any], span: Span) -> dict[int, list[Series]]:
    """Return the curves of each panel of a dashboard, by its id."""
    found: dict[int, list[Series]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = fill_in(target["expr"], VARIABLES | {"$__rate_interval": RATE_INTERVAL})
            matrix = await prometheus.query_range(expr, span.start, span.end, span.step)
            found.setdefault(panel["id"], []).extend(read_matrix(matrix, target["legendFormat"]))
    return found


async def draw_pictures(seconds: float, out: Path) -> None:
    """Watch a site for so long, and write one picture for each dashboard to `out`."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        async with (
            monitored_site(Path(folder) / "site") as site,
            prometheus_server(Path(folder) / "prometheus", site.targets, every=EVERY) as prometheus,
            under_load(site, crash_every_s=seconds / 3),
        ):
            start = time.time()
            await asyncio.sleep(seconds)
            span = Span(start, start + seconds, step=max(1.0, round(seconds / 90)))
            out.mkdir(exist_ok=True)
            for path in DASHBOARDS:
                board = read_dashboard(path)
                picture = draw_dashboard(board, await ask_panels(prometheus, board, span), span)
                (out / f"{path.stem}.svg").write_text(picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--out", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    asyncio.run(draw_pictures(arguments.seconds, arguments.out))
