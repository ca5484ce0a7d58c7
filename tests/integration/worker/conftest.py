"""Workers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.worker_engines import Fleet, fleet_in


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as started:
        yield started
