"""What most tests of a gateway need, with settings as they are by default; context managers take others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support import response_state
from tests.support.installed_engines import Kind, needed
from tests.support.response_state import Rest, Site


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayHarness]:
    """A gateway whose first table has no models."""
    async with gateway_harness() as gateway:
        yield gateway


@pytest.fixture
async def engine(gateway: GatewayHarness) -> AsyncIterator[MockEngine]:
    """The engine of the model `m` of `gateway`."""
    async with engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        yield engine


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A gateway that stores responses, its model `m`, and a client of OpenAI's."""
    async with response_state.site() as site:
        yield site


@pytest.fixture
def rest(site: Site) -> Rest:
    """Requests to the conversations of `site`."""
    return Rest(site)


@pytest.fixture(scope="module", params=["embedded", "binary"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of llama-server that there is."""
    kind: Kind = request.param
    needed(kind)
    return kind
