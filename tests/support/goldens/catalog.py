"""All goldens."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.support.goldens import journal, names, routing, tables
from tests.support.goldens.definitions import DEFINITIONS
from tests.support.goldens.engines import make_engine
from tests.support.goldens.golden import Golden

GOLDENS: Final = (
    *(Golden("engines", backend, partial(make_engine, backend)) for backend in DEFINITIONS),
    Golden("routing", "table", routing.make_table),
    Golden("routing", "report", routing.make_report),
    Golden("journal", "entries", journal.make_journal),
    Golden("openapi", "document", tables.make_document),
    Golden("openapi", "routes", tables.make_routes),
    Golden("schema", "desired-state", tables.make_schema),
    Golden("cli", "roundhouse", tables.make_roundhouse),
    Golden("cli", "worker", tables.make_worker),
    Golden("cli", "exit-codes", tables.make_exits),
    Golden("errors", "codes", tables.make_errors),
    Golden("metrics", "families", tables.make_metrics),
    Golden("settings", "variables", tables.make_settings),
    Golden("names", "docker", names.make_docker),
    Golden("names", "deployment", names.make_deployment),
    Golden("names", "state-folder", names.make_state_folder),
    Golden("names", "strings", names.make_strings),
    Golden("names", "modules", names.make_modules),
)
SUBJECTS: Final = tuple(dict.fromkeys(golden.subject for golden in GOLDENS))
