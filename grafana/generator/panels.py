"""What a panel shows, and its form in Grafana."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common, dashboard

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="prometheus")
"""The one data source, as `grafana/provisioning/datasources` names it."""
COLUMNS: Final = 24
"""Columns of a dashboard."""

PanelBuilder: TypeAlias = stat.Panel | timeseries.Panel | statetimeline.Panel
_Builder = TypeVar("_Builder", stat.Panel, timeseries.Panel, statetimeline.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and the name that its series have in the panel."""

    expr: str
    legend: str = ""
    """Grafana's form: `{{model}}` stands for the label's value."""


@dataclass(frozen=True)
class Panel(ABC):
    """What all panels have in common."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    """Grafana's identifier of a unit, such as `s` or `percentunit`."""
    width: int = 12
    """Columns, of `COLUMNS`."""
    height: int = 8
    """Rows of Grafana's grid, 30 pixels each."""

    @abstractmethod
    def to_builder(self) -> PanelBuilder:
        """Return the panel in Grafana's form, without id and place."""

    def _fill(self, builder: _Builder, *, is_instant: bool) -> _Builder:
        builder.title(self.title).description(self.description).datasource(DATASOURCE).unit(self.unit)
        for number, query in enumerate(self.queries):
            target = Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(DATASOURCE)
            builder.with_target((target.instant() if is_instant else target.range()).legend_format(query.legend))
        return builder


@dataclass(frozen=True)
class Stat(Panel):
    """One figure, as it is now."""

    width: int = 4
    height: int = 4
    red_from: float | None = None
    """The figure is red from here on; None: never."""
    green_from: float | None = None
    """The figure is red below, and green from here on; None: it is blue, or green below `red_from`."""

    def to_builder(self) -> stat.Panel:
        """Return the panel in Grafana's form, without id and place."""
        return (
            self._fill(stat.Panel(), is_instant=True)
            .thresholds(_thresholds(self.red_from, self.green_from))
            .graph_mode(common.BigValueGraphMode.NONE)
            .color_mode(common.BigValueColorMode.VALUE)
            .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        )


@dataclass(frozen=True)
class TimeSeries(Panel):
    """Curves over time."""

    is_stacked: bool = False
    most: float | None = None
    """Upper end of the axis; None: as the data needs it."""

    def to_builder(self) -> timeseries.Panel:
        """Return the panel in Grafana's form, without id and place."""
        builder = self._fill(timeseries.Panel(), is_instant=False).min(0)
        if self.most is not None:
            builder.max(self.most)
        if self.is_stacked:
            builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
        return (
            builder.fill_opacity(30 if self.is_stacked else 8)
            .line_width(1)
            .show_points(common.VisibilityMode.NEVER)
            .legend(_legend(is_shown=True))
            .tooltip(
                common_builders.VizTooltipOptions()
                .mode(common.TooltipDisplayMode.MULTI)
                .sort(common.SortOrder.DESCENDING)
            )
        )


@dataclass(frozen=True)
class StateTimeline(Panel):
    """Bands of states over time. Each series has a number for its state."""

    width: int = COLUMNS
    states: Mapping[int, tuple[str, str]] | None = None
    """The number of a state to its name and color."""

    def to_builder(self) -> statetimeline.Panel:
        """Return the panel in Grafana's form, without id and place."""
        states = (self.states or {}).items()
        named = {str(value): dashboard.ValueMappingResult(text=text, color=color) for value, (text, color) in states}
        return (
            self._fill(statetimeline.Panel(), is_instant=False)
            .mappings([dashboard.ValueMap(options=named)])
            .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED))
            .merge_values(True)
            .line_width(0)
            .fill_opacity(70)
            .show_value(common.VisibilityMode.AUTO)
            .legend(_legend(is_shown=False))
        )


def _legend(*, is_shown: bool) -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .show_legend(is_shown)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs([])
    )


def _thresholds(red_from: float | None, green_from: float | None) -> builders.ThresholdsConfig:
    if green_from is not None:
        steps = [dashboard.Threshold(None, "red"), dashboard.Threshold(green_from, "green")]
    elif red_from is not None:
        steps = [dashboard.Threshold(None, "green"), dashboard.Threshold(red_from, "red")]
    else:
        steps = [dashboard.Threshold(None, "blue")]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
