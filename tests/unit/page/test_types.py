"""The types of the API that the page is written against are those of the gateway."""

from __future__ import annotations

import pytest

from tests.support.page_tools import require_node
from tests.support.page_types import TYPES, WRITE, make_types


@pytest.mark.slow
def test_the_types_are_those_of_the_gateways_document() -> None:
    require_node()
    assert TYPES.read_text() == make_types(), f"{TYPES.name} is old: {WRITE}"
