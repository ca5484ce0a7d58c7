"""A Roundhouse with a page, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.fakes.fake_mcp_server import text_result
from tests.support.campaign import campaign_name
from tests.support.fake_hub.server import FakeHub
from tests.support.mcp_servers import mcp_process
from tests.support.page_browser import DEADLINE_MS, Look
from tests.support.page_stacks import (
    CLOCKWORK,
    SpokenStack,
    clockwork_stack,
    make_hub,
    managed_stack,
    open_in_thread,
    spoken_stack,
)
from tests.support.page_texts import ATTACKING_NAMES, CORPUS
from tests.support.roundhouse_stack import RoundhouseStack


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each walk its looks: those of its marker `looks`, else a desk with the light theme; in the campaign
    `page_matrix` every look."""
    if "look" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("looks")
        own = (Look.DESK,) if marker is None else marker.args
        metafunc.parametrize("look", tuple(Look) if campaign_name() == "page_matrix" else own)


@pytest.fixture(scope="session", autouse=True)
def patient_expectations() -> None:
    """Give what is expected of a page as long as a step may take, in place of Playwright's 5 s."""
    expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="session")
def page_stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, with the model `clockwork` on a real llama-server. Kept for all tests, which
    therefore leave the conversations of others alone."""
    with clockwork_stack(tmp_path_factory.mktemp("page"), clockwork, {"clockwork": CLOCKWORK}) as stack:
        yield stack


@pytest.fixture(scope="session")
def hub(clockwork: Path) -> Iterator[FakeHub]:
    """The hub from which `whole_stack` downloads."""
    with make_hub(clockwork) as hub:
        yield hub


@pytest.fixture(scope="session")
def whole_stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path, hub: FakeHub) -> Iterator[RoundhouseStack]:
    """A `managed_stack` for all tests of the views beside the chat. Each test leaves the models as it found them."""
    with managed_stack(tmp_path_factory.mktemp("whole"), clockwork, hub) as stack:
        yield stack


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpokenStack]:
    """A Roundhouse whose model says and calls what a test decides, with tools that tell much, fail, and attack, prompts
    and resources that attack, and `demo`, a real server of the package `mcp`."""
    results = {
        "look": text_result("It rains. " * 300),
        "break": {**text_result("no such city"), "isError": True},
        "attack": text_result("\n\n".join(CORPUS)),
    }
    with (
        open_in_thread(mcp_process()) as demo,
        spoken_stack(tmp_path_factory.mktemp("spoken"), results, ATTACKING_NAMES, {"demo": demo.url}) as stack,
    ):
        yield stack
