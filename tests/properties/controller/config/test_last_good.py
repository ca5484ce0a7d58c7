"""What is stored is what is read back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config.debounce import load_last_good, save_last_good
from controller.config.validate import validate_models
from controller.config.yaml12 import SourcePlace, Table, with_place
from tests.support.campaign import campaign_count
from tests.support.definitions import MODELS_ROOT

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MODELS = st.dictionaries(
    st.from_regex(r"\A[a-z][a-z0-9:/.-]{0,10}\Z"),
    st.fixed_dictionaries(
        {"backend": st.just("stub")},
        optional={
            "stub_text": TEXT,
            "stub_load_s": st.floats(0, 1e9),
            "env": st.dictionaries(TEXT, TEXT, max_size=2),
            "extra_args": st.lists(TEXT, max_size=2),
            "replicas": st.integers(1, 256),
            "enabled": st.booleans(),
        },
    ),
    max_size=4,
)


@settings(max_examples=campaign_count(20, 500))
@given(MODELS)
def test_saved_models_are_loaded_as_they_were(models: dict[str, Any]) -> None:
    table = with_place(models, SourcePlace("f"))
    assert isinstance(table, Table)
    found = validate_models(table, MODELS_ROOT)
    assert not found.problems
    with tempfile.TemporaryDirectory() as folder:
        save_last_good(Path(folder), found.declared_models, {}, now=1.0)
        settled = load_last_good(Path(folder), MODELS_ROOT)
    assert settled is not None
    assert settled.definitions == found.definitions
    assert settled.declared_models == found.declared_models == models
