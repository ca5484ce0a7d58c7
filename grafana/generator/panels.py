"""What a panel shows, its form in Grafana, PromQL that several panels need, and dashboards of panels."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

OF_MODEL = 'model=~"$model"'
"""Selector of the models that the reader chose."""


def sum_rate(metric: str, selector: str = "", by: str = "model") -> str:
    """Return the sum of a counter's rates per second. `by`: labels to keep, comma-separated; empty: none."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{_braces(selector)}[$__rate_interval]))"


def rate_by_model(metric: str, legend: str = "{{model}}", by: str = "model", more: str = "") -> Query:
    """Return a counter's rate per second of the chosen models. `more`: selectors beside the model's."""
    return Query(sum_rate(metric, ",".join(filter(None, (OF_MODEL, more))), by), legend)


def quantile(share: float, metric: str, selector: str = "", by: str = "model") -> str:
    """Return a quantile of a histogram, of the observations in the rate interval. `metric`: without `_bucket`."""
    labels = ", ".join(filter(None, ("le", by)))
    buckets = f"rate({metric}_bucket{_braces(selector)}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({buckets}))"


def quantiles(metric: str, selector: str = OF_MODEL, by: str = "model") -> tuple[Query, Query]:
    """Return the median and the 95th percentile of a histogram."""
    name = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",") if label)
    median, high = quantile(0.5, metric, selector, by), quantile(0.95, metric, selector, by)
    return Query(median, f"{name} p50".strip()), Query(high, f"{name} p95".strip())


def _braces(selector: str) -> str:
    return f"{{{selector}}}" if selector else ""


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


REQUESTS_INSIDE: Final = (
    Query(f"sum by (model) (roundhouse_gateway_inflight{{{OF_MODEL}}})", "{{model}} in flight"),
    Query(f"sum by (model) (roundhouse_gateway_queued{{{OF_MODEL}}})", "{{model}} queued"),
)
"""Requests that engines serve, and requests that wait."""


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


TAG: Final = "roundhouse"
"""Of every dashboard, so that each links to the others."""


@dataclass(frozen=True, slots=True)
class Variable:
    """What a reader chooses at the top of a dashboard: one, several or all values of a label."""

    name: str
    label: str
    query: str
    """Grafana's `label_values(METRIC, LABEL)`."""


MODEL: Final = Variable("model", "Model", "label_values(roundhouse_model_state, model)")
TENANT: Final = Variable("tenant", "Tenant (key)", "label_values(roundhouse_gateway_key_requests_total, key)")
GPU: Final = Variable("gpu", "GPU", "label_values(roundhouse_gpu_used_mib, gpu)")
REPLICA: Final = Variable("replica", "Replica", 'label_values(roundhouse_engine_up{model=~"$model"}, replica)')


@dataclass(frozen=True, slots=True)
class Section:
    """Panels below a heading, placed from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `name`: its file, without `.json`."""

    name: str
    uid: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[Variable, ...] = ()

    def to_json(self) -> str:
        """Return the dashboard as Grafana reads it, with a line break at the end."""
        board = (
            builders.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .readonly()
            .refresh("30s")
            .time("now-3h", "now")
            .timezone(common.TimeZoneBrowser)
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .link(_link())
            .variables([_variable(each) for each in self.variables])
        )
        made = board.build()
        made.panels = list(self._place_panels())
        return json.dumps(json.loads(JSONEncoder().encode(made)), indent=2, sort_keys=True) + "\n"

    def _place_panels(self) -> Iterator[dashboard.Panel | dashboard.RowPanel]:
        number, y = 0, 0
        for section in self.sections:
            number += 1
            row = builders.Row(section.title).id(number).collapsed(False)
            yield row.grid_pos(dashboard.GridPos(h=1, w=COLUMNS, x=0, y=y)).build()
            x, y, tallest = 0, y + 1, 0
            for panel in section.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                number += 1
                place = dashboard.GridPos(h=panel.height, w=panel.width, x=x, y=y)
                yield panel.to_builder().id(number).grid_pos(place).build()
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest


def _link() -> builders.DashboardLink:
    link = builders.DashboardLink("Roundhouse").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def _variable(variable: Variable) -> builders.QueryVariable:
    return (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .include_all(True)
        .multi(True)
        .all_value(".*")
        .current(dashboard.VariableOption(text="All", value="$__all"))
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
