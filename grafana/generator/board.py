"""A dashboard: its sections, its variables, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from grafana.generator.panels import COLUMNS, DATASOURCE, Panel

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
