"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.fake_control_api import FakeControlApi
from tests.support.cli import Cli, Roundhouse


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    """A controller whose answers a test sets, on a real unix socket."""
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


@pytest.fixture
def cli(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands that ask that controller."""
    return Cli(capsys, "--controller", api.url)


@pytest.fixture
def roundhouse(capsys: pytest.CaptureFixture[str]) -> Roundhouse:
    """Commands that need none, or name theirs."""
    return Roundhouse(capsys)
