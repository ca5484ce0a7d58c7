"""A whole dashboard as one SVG picture, as it looks in Grafana. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grafana.pictures.charts import Box, Span, draw_panel, draw_text
from grafana.pictures.series import Series

COLUMN: Final = 50
"""Pixels of one of the 24 columns."""
ROW: Final = 26
"""Pixels of one row of Grafana's grid."""
HEAD: Final = 64
"""Pixels above the first panel."""
_STYLE: Final = """
text { font-family: Helvetica, Arial, sans-serif; fill: #24292f; }
.head { font-size: 20px; font-weight: bold; }
.row { font-size: 14px; font-weight: bold; }
.title { font-size: 12px; font-weight: bold; }
.small { font-size: 10px; fill: #57606a; }
.band { font-size: 10px; fill: #ffffff; }
.figure { font-size: 30px; font-weight: bold; }
.panel { fill: #ffffff; stroke: #d0d7de; }
.grid { stroke: #e6e9ec; }
.curve { fill: none; stroke-width: 1.3; }
""".replace("\n", " ")


def draw_dashboard(board: Mapping[str, Any], data: Mapping[int, Sequence[Series]], span: Span) -> str:
    """Return the picture of a dashboard as SVG. The same arguments give the same picture.

    `data`: the curves of each panel, by its id; a panel without any shows `No data`.
    """
    height = HEAD + ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 6
    width = COLUMN * 24
    chosen = ", ".join(f"{each['label']}: All" for each in board["templating"].get("list", ()))
    shown = f"{board['description']}  {chosen}".strip()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#f6f8fa"/>',
        draw_text(12, 28, board["title"], "head"),
        draw_text(12, 48, shown, "small"),
    ]
    for panel in board["panels"]:
        place = panel["gridPos"]
        box = Box(place["x"] * COLUMN, HEAD + place["y"] * ROW, place["w"] * COLUMN, place["h"] * ROW)
        if panel["type"] == "row":
            parts.append(draw_text(box.x + 12, box.y + 19, panel["title"], "row"))
        else:
            parts += draw_panel(panel, data.get(panel["id"], ()), span, box)
    return "\n".join([*parts, "</svg>", ""])
