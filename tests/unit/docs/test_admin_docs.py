"""docs/admin.md has what the admin API has: routes with their errors, parameters, fields, kinds, states."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from contract.admin import (
    AdminModel,
    AdminModels,
    Drift,
    DriftItem,
    DryRun,
    FieldChange,
    GpuMemoryAnswer,
    HeldBy,
    LoadConstraint,
    ModelChange,
    ProposedFiles,
    UnloadRequest,
)
from contract.errors import ERROR_CODES
from contract.journal import HISTORY_KINDS, EventKind, History, JournalEntry
from contract.status import ActionView, BlockedView, PlanView, Problem, ReplicaStatus, StatementView
from controller.api import examples
from controller.api.app import create_app
from controller.state_machine import LEGAL
from tests.support.doc_tables import DOCS, row, rows_of

PAGE = "admin.md"
EVERYWHERE = {"schema_violation", "internal_error", "controller_unavailable"}
"""Codes that every route documents, and that the page names once."""
SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "Rows": (AdminModels, AdminModel, StatementView, HeldBy, ReplicaStatus),
    "Effective values, and null": (LoadConstraint,),
    "Unload": (UnloadRequest,),
    "Plan and dry run": (PlanView, ActionView, BlockedView, ProposedFiles, DryRun, ModelChange, FieldChange, Problem),
    "Drift": (Drift, DriftItem),
    "Events": (JournalEntry,),
    "History": (History,),
}
"""By heading, what is answered or taken there; every field of it is named in that section. Of GPUs and downloads the
page has only what /openapi.json does not say."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    names = (
        "hub",
        "journal",
        "admin_service",
        "declaration_service",
        "host_service",
        "logs",
        "downloads",
        "model_files",
    )
    parts: Any = SimpleNamespace(**dict.fromkeys(names))
    return create_app(parts, CollectorRegistry()).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Method and path, and the operation."""
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def codes_of(operation: dict[str, Any]) -> list[str]:
    contents = (answer.get("content", {}).get("application/json", {}) for answer in operation["responses"].values())
    found = {code for content in contents for code in content.get("examples", {})}
    return [code for code in ERROR_CODES if code in found]


def section(heading: str) -> str:
    text = (DOCS / PAGE).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/{PAGE} has no heading {heading!r}"
    return found.group(1)


def firsts(heading: str) -> list[str]:
    """The first cells of the section's table, without their quotes."""
    return [line.split("|")[1].strip().strip("`") for line in rows_of(PAGE, heading)]


def test_every_route_is_there_with_its_errors(document: dict[str, Any]) -> None:
    told = {line.split("|")[1].strip(): line for line in rows_of(PAGE, "Routes")}
    expected = {}
    for route, operation in operations(document):
        codes = codes_of(operation)
        assert set(codes) >= EVERYWHERE, route
        named = sorted((code for code in codes if code not in EVERYWHERE), key=lambda code: _place(told, route, code))
        words = ", ".join(f"`{code}`" for code in named)
        expected[f"`{route}`"] = row(f"`{route}`", words)
    assert told == expected
    assert all(f"`{code}`" in section("Routes") for code in EVERYWHERE)


def _place(told: dict[str, str], route: str, code: str) -> int:
    # The order in which the page names them is its own.
    return told.get(f"`{route}`", "").find(f"`{code}`")


def test_every_parameter_is_named(document: dict[str, Any]) -> None:
    text = (DOCS / PAGE).read_text()
    for route, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            name = "Last-Event-ID" if parameter["in"] == "header" else parameter["name"]
            assert parameter["in"] == "path" or re.search(rf"`{name}[`=]", text), f"{route} takes {name}"


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_field_is_named_in_its_section(heading: str) -> None:
    text = section(heading)
    for model in SECTIONS[heading]:
        for name in model.model_fields:
            assert re.search(rf"`(?:{name}|{{\"{name}\"[^`]*)`", text), f"{model.__name__}.{name} is not in {heading}"


def test_every_state_and_step() -> None:
    told = [[cell.strip() for cell in line.split("|")[1:3]] for line in rows_of(PAGE, "States")]
    assert told == [
        [f"`{state.value}`", ", ".join(sorted(f"`{after.value}`" for after in LEGAL[state]))] for state in LEGAL
    ]


def test_every_kind_of_event_and_which_are_history() -> None:
    told = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in rows_of(PAGE, "Events")]
    assert told == [(f"`{kind}`", "yes" if kind in HISTORY_KINDS else "") for kind in get_args(EventKind)]


def test_every_kind_of_drift() -> None:
    assert firsts("Drift") == list(get_args(DriftItem.model_fields["kind"].annotation))


@pytest.mark.parametrize(
    ("model", "field", "heading"),
    [
        (StatementView, "kind", "Which statement rules"),
        (ModelChange, "change", "Plan and dry run"),
        (ModelChange, "effect", "Plan and dry run"),
        (LoadConstraint, "kind", "Effective values, and null"),
        (AdminModel, "vram_estimate_source", "Rows"),
    ],
)
def test_every_value_of_a_choice_is_named(model: type[BaseModel], field: str, heading: str) -> None:
    values = get_args(model.model_fields[field].annotation)
    assert values
    text = section(heading)
    for value in values:
        assert f"`{value}`" in text, f"{heading} does not name {value}"


def test_every_field_and_parameter_of_the_document_is_described(document: dict[str, Any]) -> None:
    lacking = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, each in schema.get("properties", {}).items()
        if not each.get("description")
    ]
    lacking += [
        f"{route} {parameter['name']}"
        for route, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    lacking += [route for route, operation in operations(document) if len(operation["description"]) < 20]
    assert lacking == []


@pytest.mark.parametrize(
    ("model", "value"),
    [(AdminModel, examples.ROW), (AdminModels, examples.MODELS), (GpuMemoryAnswer, examples.GPU_MEMORY)],
)
def test_examples_have_the_shapes_of_answers(model: type[BaseModel], value: dict[str, Any]) -> None:
    assert json.loads(model.model_validate(value).model_dump_json()) == value
