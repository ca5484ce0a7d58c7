"""Whatever a load may set, the definition takes; and nothing crashes on what it may not."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract.desired import Definition
from controller.admin.override_rules import MOST, find_wrong_backend, load_params, load_request_model
from controller.desired.resolve import with_params
from controller.engines import ENGINES
from controller.engines.base import Engine
from controller.engines.options import LoadField
from tests.support.campaign import campaign_count
from tests.support.doc_tables import value_type

LoadRequest = load_request_model()
LOADABLE = [engine for engine in ENGINES.values() if engine.load_fields]


def _values(field: LoadField) -> st.SearchStrategy[Any]:
    """Values of the field's type: some at its bounds, some that it shows, some that are neither."""
    limits = field.constraint
    shown: list[Any] = [*(limits.allowed_values or ()), *(limits.examples or ()), limits.minimum, limits.maximum]
    kinds: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(1 if limits.kind == "integer" else -MOST, MOST)
        | st.integers(1, 200).map(lambda n: n * (limits.step or 1)),
        float: st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1),
        str: st.text() | st.from_regex(r"[1-9](,[1-9])?", fullmatch=True),
    }
    values = [kinds[value_type(field)], *([st.none()] if field.takes_null else [])]
    return st.one_of(*values, st.sampled_from([each for each in shown if each is not None] or [1])).filter(
        lambda value: value is None or type(value) is value_type(field)
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[Engine[Any], dict[str, Any]]:
    engine = draw(st.sampled_from(LOADABLE))
    fields = draw(st.lists(st.sampled_from(engine.load_fields), unique_by=lambda field: field.name, max_size=5))
    return engine, {field.name: draw(_values(field)) for field in fields}


def _minimal(engine: Engine[Any]) -> Definition:
    definition: Definition = engine.definition.model_validate({"backend": engine.name, "model_path": "m"})
    return definition


@settings(max_examples=campaign_count(25, 600))
@given(load=loads())
def test_what_a_load_passes_the_definition_takes(load: tuple[Engine[Any], dict[str, Any]]) -> None:
    engine, params = load
    request = LoadRequest.model_validate(params)
    assert load_params(request) == params
    assert find_wrong_backend(engine, params) is None
    assume(not engine.load_faults(params))
    override = engine.load_override(params)
    loaded = with_params(_minimal(engine), override)
    assert {name: getattr(loaded, name) for name in override} == override
    for other in ENGINES.values():
        if params and other.load_fields != engine.load_fields:
            assert find_wrong_backend(other, params) is not None


@settings(max_examples=campaign_count(30, 1_000))
@given(load=loads())
def test_a_fault_names_a_field_that_was_given(load: tuple[Engine[Any], dict[str, Any]]) -> None:
    engine, params = load
    for fault in engine.load_faults(params):
        assert fault.field in params
        assert fault.message
        assert len(fault.message) < 300
