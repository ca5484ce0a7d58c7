"""The gateway's tests run on the event loop that it has itself: uvloop's transports are not asyncio's.

And the places where the tests of runtimes have their engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support.docker_engine import DockerEngines, shared_network
from tests.support.process_engines import HostEngines, ProcessEngines
from tests.support.runtime_contract import ContractEngines


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop's for these, asyncio's for others."""
    if "gateway" in item.path.parent.parts:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def engines_network() -> Iterator[str]:
    """A network of containers for all tests of this process; skips, or fails where it is required, without Docker."""
    with shared_network() as name:
        yield name


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ProcessEngines]:
    """A place for engines as processes."""
    made = ProcessEngines(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def containers(tmp_path: Path, engines_network: str) -> AsyncIterator[DockerEngines]:
    """A place for engines as containers."""
    made = DockerEngines(tmp_path, engines_network)
    yield made
    await made.close()


@pytest.fixture
async def containers_alone(tmp_path: Path, engines_network: str) -> AsyncIterator[DockerEngines]:
    """The same with a network of its own, which is not there yet."""
    made = DockerEngines(tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=["process", "host", pytest.param("docker", marks=pytest.mark.docker)])
async def engines(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContractEngines]:
    """Each kind of place that the contract of runtimes holds for."""
    made: ContractEngines
    if request.param == "process":
        made = ProcessEngines(tmp_path)
    elif request.param == "host":
        made = HostEngines(tmp_path)
    else:
        made = DockerEngines(tmp_path, request.getfixturevalue("engines_network"))
    yield made
    await made.close()
