"""What a panel draws: named curves, read from Prometheus' answers. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. `points`: Unix time and value, in the order of time; where there is no figure, there is no point."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float | None:
        """The newest value; None: there is none."""
        return self.points[-1][1] if self.points else None


def read_matrix(result: Iterable[Mapping[str, Any]], legend: str) -> list[Series]:
    """Return the curves of a range query's `result`, sorted by name. Empty ones are left out.

    `legend`: Grafana's form, in which `{{model}}` stands for a label's value; empty: all labels.
    """
    found = []
    for each in result:
        pairs = ((float(at), float(value)) for at, value in each["values"])
        points = tuple((at, value) for at, value in pairs if math.isfinite(value))
        if points:
            found.append(Series(name_series(each["metric"], legend), points))
    return sorted(found, key=lambda series: series.name)


def name_series(labels: Mapping[str, str], legend: str) -> str:
    """Return a curve's name as Grafana makes it from its labels."""
    if legend:
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)
    told = {name: value for name, value in labels.items() if name not in ("__name__", "instance", "job")}
    return ", ".join(f"{name}={value}" for name, value in sorted(told.items()))
