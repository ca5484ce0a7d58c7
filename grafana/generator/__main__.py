"""Writes grafana/dashboards: `python -m grafana.generator`, which `make dashboards` runs.

A file that no dashboard has any more is removed. Exit code 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from grafana.generator import controller, gateway_latency, gpus, models, overview, retrieval, tenants

DASHBOARDS: Final = Path(__file__).parents[1] / "dashboards"
BOARDS: Final = (
    overview.BOARD,
    models.BOARD,
    gpus.BOARD,
    gateway_latency.BOARD,
    tenants.BOARD,
    retrieval.BOARD,
    controller.BOARD,
)


def make_dashboards() -> dict[str, str]:
    """Return the text of each file in `DASHBOARDS`, by its name."""
    return {f"{board.name}.json": board.to_json() for board in BOARDS}


def write_dashboards(folder: Path) -> None:
    """Make `folder` hold exactly the dashboards. Raises OSError if it cannot be written."""
    made = make_dashboards()
    for path in folder.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write_dashboards(DASHBOARDS)
